package main

// Set by the linker: -X main.version=v0.1.0 -X main.commit=… . The commit stays empty in a build that was told none.
var (
	version = "unknown"
	commit  string
)

// versionText is what --version prints. The version is its second word, as it is csi-node-driver-registrar's.
func versionText() string {
	text := "csi-rdma-gate " + version
	if commit != "" {
		text += " (commit " + commit + ")"
	}
	return text
}
