package node

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"strings"
)

// users are those who have a token, and their groups.
var users = []struct{ name, groups string }{
	{admin, "system:masters"},
	{"system:kube-controller-manager", ""},
	{"system:kube-scheduler", ""},
	// Under this name the Node authorizer and NodeRestriction allow what a node's kubelet may do.
	{kubeletUser, "system:nodes"},
}

const (
	admin       = "admin"
	kubeletUser = "system:node:" + Name
)

// kubeconfigText trusts any certificate: the API server makes its own, and no packet leaves the node.
const kubeconfigText = `apiVersion: v1
kind: Config
clusters:
  - name: e2e
    cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}
users:
  - name: "%[1]s"
    user: {token: "%[2]s"}
contexts:
  - name: e2e
    context: {cluster: e2e, user: "%[1]s"}
current-context: e2e
`

func (n *Node) kubeconfig(user string) string {
	return n.path("kubeconfig-" + strings.ReplaceAll(user, ":", "-"))
}

// writeCredentials writes the tokens, a kubeconfig for each, and the key that signs the tokens of
// service accounts.
func (n *Node) writeCredentials() error {
	var tokens strings.Builder
	for _, user := range users {
		secret := make([]byte, 16)
		_, _ = rand.Read(secret) // it never fails
		token := hex.EncodeToString(secret)
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", token, user.name, user.name, user.groups)
		name := strings.TrimPrefix(n.kubeconfig(user.name), n.dir+"/")
		if err := n.write(name, fmt.Sprintf(kubeconfigText, user.name, token)); err != nil {
			return err
		}
	}
	if err := n.write("tokens.csv", tokens.String()); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	return n.write("service-account.key", string(pem.EncodeToMemory(block)))
}

func (n *Node) startControlPlane(ctx context.Context) error {
	if err := n.writeCredentials(); err != nil {
		return err
	}
	n.daemon("etcd",
		"--data-dir="+n.path("etcd"),
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--unsafe-no-fsync", // nothing of it is needed after a crash
	)
	n.daemon("kube-apiserver", append(n.featureGates(),
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address="+Address,
		"--cert-dir="+n.path("apiserver"),
		"--service-cluster-ip-range=10.96.0.0/24",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+n.path("service-account.key"),
		"--service-account-signing-key-file="+n.path("service-account.key"),
		"--token-auth-file="+n.path("tokens.csv"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged",
		"--endpoint-reconciler-type=none",
		"--kubelet-preferred-address-types=InternalIP", // nobody resolves the node's name
	)...)
	n.daemon("kube-controller-manager",
		"--kubeconfig="+n.kubeconfig("system:kube-controller-manager"),
		"--service-account-private-key-file="+n.path("service-account.key"),
		"--use-service-account-credentials",
		"--leader-elect=false",
		"--flex-volume-plugin-dir="+n.path("volume-plugins"), // it would make the default one on this machine
		"--pvclaimbinder-sync-period=1s",                     // else a static volume can take 15 s to be bound
	)
	n.daemon("kube-scheduler",
		"--kubeconfig="+n.kubeconfig("system:kube-scheduler"),
		"--leader-elect=false",
	)
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if err := n.daemons[name].Start(); err != nil {
			return err
		}
	}
	if err := n.awaitAPIServer(ctx); err != nil {
		return err
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		if err := n.daemons[name].Start(); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) awaitAPIServer(ctx context.Context) error {
	return n.Eventually(ctx, "the API server is ready", func() error {
		_, err := n.Kubectl(ctx, "", "get", "--raw=/readyz")
		return err
	})
}

// StopAPIServer takes the API server away.
func (n *Node) StopAPIServer() { n.daemons["kube-apiserver"].Kill() }

// StartAPIServer brings it back and waits until it is ready.
func (n *Node) StartAPIServer(ctx context.Context) error {
	if err := n.daemons["kube-apiserver"].Start(); err != nil {
		return err
	}
	return n.awaitAPIServer(ctx)
}
