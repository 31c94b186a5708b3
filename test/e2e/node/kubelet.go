package node

import (
	"context"
	"fmt"
)

// kubeletConfig is a kubelet's of any cluster, but for what concerns the machine: it leaves the
// machine's firewall, memory killer and swap alone, is content with cgroup v1 and a full disk, keeps
// images that nobody can pull again, and puts nothing outside the node.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://` + containerdSocket + `
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
oomScoreAdj: 1
localStorageCapacityIsolation: false
imageGCHighThresholdPercent: 100
evictionHard:
  memory.available: 1Mi
  pid.available: 1%%
  nodefs.available: 1Mi
  nodefs.inodesFree: "1"
  imagefs.available: 1Mi
  imagefs.inodesFree: "1"
nodeStatusUpdateFrequency: 4s
resolvConf: ""
volumePluginDir: ` + KubeletDir + `/volume-plugins
`

func (n *Node) startKubelet(ctx context.Context) error {
	if err := n.write("kubelet.yaml", fmt.Sprintf(kubeletConfig, n.cgroup())+n.featureConfig()); err != nil {
		return err
	}
	n.daemon("kubelet",
		"--config="+n.path("kubelet.yaml"),
		"--kubeconfig="+n.kubeconfig(kubeletUser),
		"--node-ip="+Address,
		"--v=2",
	)
	if err := n.daemons["kubelet"].Start(); err != nil {
		return err
	}
	return n.awaitReady(ctx)
}

func (n *Node) awaitReady(ctx context.Context) error {
	return n.Eventually(ctx, "the node is Ready", func() error {
		_, err := n.Kubectl(ctx, "", "wait", "--for=condition=Ready", "--timeout=5s", "node/"+Name)
		if err != nil {
			return err
		}
		_, err = n.Kubectl(ctx, "", "get", "serviceaccount", "default")
		return err
	})
}

// StopKubelet stops kubelet as a service manager does; containers go on.
func (n *Node) StopKubelet() { n.daemons["kubelet"].Stop() }

// StartKubelet starts it again.
func (n *Node) StartKubelet() error { return n.daemons["kubelet"].Start() }
