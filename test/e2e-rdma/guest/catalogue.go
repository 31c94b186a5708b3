package main

import "errors"

// deviceFaults are those that can be made with a soft-RoCE device.
func deviceFaults(w *wire) []fault {
	return []fault{
		{
			name:    "link down",
			inflict: func() error { return setDown(w.near) },
			repair:  func() error { return setUp(w.near) },
			verdict: "unhealthy", reason: "PhysLinkDown",
		},
		{
			name:    "carrier lost",
			inflict: func() error { return setDown(w.far) },
			repair:  func() error { return setUp(w.far) },
			verdict: "unhealthy", reason: "PhysLinkDown",
		},
		{
			// The port says ACTIVE and LinkUp.
			name:    "interface brought up without carrier",
			inflict: func() error { return errors.Join(setDown(w.near), setDown(w.far), setUp(w.near)) },
			repair:  func() error { return setUp(w.far) },
			verdict: "unhealthy", reason: "NetdevNoCarrier",
		},
		{
			name:    "device deleted",
			inflict: w.deleteDevice,
			repair:  w.addDevice,
			verdict: "unhealthy", reason: "NoDevices",
		},
		deletedWhileHeld(w),
		moved(w),
		unlinked(w),
	}
}

// deletedWhileHeld leaves a device that still says ACTIVE and LinkUp, but cannot be opened any more.
func deletedWhileHeld(w *wire) fault {
	var h *holder
	deleted := make(chan error, 1)
	return fault{
		name: "device deleted, a descriptor held elsewhere",
		prepare: func() error {
			u, err := findUverbs(w.device)
			if err == nil {
				h, err = startHolder(u.path)
			}
			return err
		},
		inflict: func() error {
			go func() { deleted <- w.deleteDevice() }()
			return nil
		},
		repair: func() error {
			select {
			case err := <-deleted:
				return errors.Join(errors.New("the deletion did not wait for the descriptor"), err)
			default:
			}
			h.kill()
			return errors.Join(<-deleted, w.addDevice())
		},
		verdict: "unhealthy", reason: "VerbsMissing",
	}
}

// moved takes the interface away, upon which the kernel deletes the soft-RoCE device.
func moved(w *wire) fault {
	var elsewhere *namespace
	return fault{
		name: "interface moved to another network namespace",
		prepare: func() (err error) {
			elsewhere, err = newNamespace()
			return err
		},
		inflict: func() error { return elsewhere.take(w.near) },
		repair: func() error {
			return errors.Join(elsewhere.giveBack(w.near), elsewhere.Close(), setUp(w.near), w.addDevice())
		},
		verdict: "unhealthy", reason: "NoDevices",
	}
}

func unlinked(w *wire) fault {
	var u uverbs
	return fault{
		name: "verbs device node unlinked",
		prepare: func() (err error) {
			u, err = findUverbs(w.device)
			return err
		},
		inflict: func() error { return u.unlink() },
		repair:  func() error { return u.restore() },
		verdict: "unhealthy", reason: "VerbsMissing",
	}
}
