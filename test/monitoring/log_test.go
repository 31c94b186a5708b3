package monitoring

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/log.golden anew from the log in JSON")

// testLog has the gate open, close, refuse, deregister, be overridden and recover at default verbosity, and compares each
// line that it writes, in both formats, with testdata/log.golden: its message, keys and values, less what time and place
// make of them.
func (b binaries) testLog(t *testing.T) {
	for format, parse := range map[string]func(string) (string, error){"json": parseJSON, "text": parseText} {
		t.Run(format, func(t *testing.T) {
			n := b.startNode(t, "--logging-format="+format, "--rdma-checks=port,gid,netdev")
			n.liveThroughANight()
			compareLog(t, n.normalise(parse), format == "json" && *update)
		})
	}
}

// liveThroughANight is the story. Each step waits for the gate's last line about it.
func (n *node) liveThroughANight() {
	n.t.Helper()
	n.awaitLog("Kubelet has registered the driver", 1)
	n.mustMount(1)
	n.pull()
	n.awaitLog("Trouble counts for the registration", 1)
	for range 3 {
		n.refuse(2)
	}
	n.mustUnmount(1)
	n.awaitLog("Deregistered", 1)

	n.override("open ticket 4711")
	n.awaitLog("Kubelet has registered the driver", 2)
	n.override("closed firmware update")
	n.awaitOpen(false)
	n.refuse(2)
	n.override("")
	n.awaitLog("Deregistered", 2)

	n.plug()
	n.awaitLog("Kubelet has registered the driver", 3)
	if err := n.gate.Stop(patience); err != nil {
		n.t.Error(err)
	}
}

// normalise is the log, a line each as parse makes it, without what differs from run to run. The one line about the kernel's
// events is left out: which others it stands between is a matter of chance.
func (n *node) normalise(parse func(string) (string, error)) string {
	var b strings.Builder
	for line := range strings.Lines(n.log.String()) {
		text, err := parse(strings.TrimSpace(line))
		if err != nil {
			n.t.Fatalf("%v: %s", err, line)
		}
		if !strings.HasPrefix(text, "The interfaces of the selected ports are not in this network namespace") {
			b.WriteString(text + "\n")
		}
	}
	text := strings.ReplaceAll(b.String(), n.dir, "DIR")
	text = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`).ReplaceAllString(text, "TIME")
	text = regexp.MustCompile(` (version|commit)=\S*`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`( \w+For| lasted)=\d+s`).ReplaceAllString(text, "${1}=DURATION")
	return regexp.MustCompile(`/[0-9a-f]{64}/`).ReplaceAllString(text, "/HASH/")
}

func compareLog(t *testing.T, got string, write bool) {
	t.Helper()
	const golden = "testdata/log.golden"
	if write {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		if i >= len(gotLines) || i >= len(wantLines) || gotLines[i] != wantLines[i] {
			t.Fatalf("differs from %s in line %d (-update writes it anew); it is\n%s", golden, i+1, got)
		}
	}
}

// parseJSON turns a line of --logging-format=json into "message key=value …".
func parseJSON(line string) (string, error) {
	d := json.NewDecoder(strings.NewReader(line))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return "", fmt.Errorf("no object: %w", err)
	}
	var message string
	var pairs strings.Builder
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return "", err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return "", err
		}
		value := string(raw)
		if bytes.HasPrefix(raw, []byte(`"`)) {
			if err := json.Unmarshal(raw, &value); err != nil {
				return "", err
			}
		}
		switch key {
		case "ts", "caller", "v":
		case "msg":
			message = value
		default:
			fmt.Fprintf(&pairs, " %s=%s", key, value)
		}
	}
	return message + pairs.String(), nil
}

// parseText does the same for klog's text: header] "message" key="value" …
func parseText(line string) (string, error) {
	_, rest, ok := strings.Cut(line, "] ")
	if !ok {
		return "", fmt.Errorf("no header")
	}
	message, rest, err := value(rest)
	if err != nil {
		return "", err
	}
	text := message
	for rest != "" {
		var key, v string
		if key, rest, ok = strings.Cut(rest, "="); !ok {
			return "", fmt.Errorf("no value after %q", key)
		}
		if v, rest, err = value(rest); err != nil {
			return "", err
		}
		text += " " + key + "=" + v
	}
	return text, nil
}

// value takes a value, quoted or without a space in it, from the beginning of s, and the space after it.
func value(s string) (v, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		v, rest, _ = strings.Cut(s, " ")
		return v, rest, nil
	}
	quoted, err := strconv.QuotedPrefix(s)
	if err != nil {
		return "", "", fmt.Errorf("%w: %s", err, s)
	}
	v, err = strconv.Unquote(quoted)
	return v, strings.TrimPrefix(s[len(quoted):], " "), err
}
