package kubernetes

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

const (
	kubernetesVersion = "v1.37.2" // also in cluster/go.mod
	containerdVersion = "v2.4.2"
	service           = "10.96.0.1" // of the API server, in pods
	nodeIP            = "172.30.0.1"
	nodeName          = "node1"
	parentCgroup      = "softrnic-kubernetes"
)

// programs builds the programs of the cluster, unless the user's cache has them.
func programs(t *testing.T) (dir string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile("cluster/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(append(module, containerdVersion...))
	dir = filepath.Join(cache, "softrnic-kubernetes", hex.EncodeToString(sum[:8]))
	done := filepath.Join(dir, "complete")
	if _, err := os.Stat(done); err == nil {
		return dir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	version := "-s -w"
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		version += " -X " + p + ".gitVersion=" + kubernetesVersion
	}
	build := exec.Command("go", "build", "-C", "cluster", "-ldflags", version, "-o", dir+"/", "tool")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	run(t, build)
	var args []string
	for _, p := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		args = append(args, "github.com/containerd/containerd/v2/cmd/"+p+"@"+containerdVersion)
	}
	install := exec.Command("go", append([]string{"install", "-ldflags", "-s -w"}, args...)...)
	install.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+dir)
	run(t, install)
	t.Logf("result: the cluster's programs were built in %.0f s", time.Since(begun).Seconds())
	if err := os.WriteFile(done, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a command, which must succeed, and returns its standard output.
func run(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	out, err := output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// cluster is a running cluster.
type cluster struct {
	t, top   *testing.T // the running test, and that of the cluster
	programs string
	dir      string // of its files
	init     int    // the process ID of its first process
	kubelet  *program
}

// program is a running program of the cluster.
type program struct {
	cmd   *exec.Cmd
	said  *proc.Output
	ended chan error
}

// kill kills the program. setpriv lets it end with nsenter, which started it.
func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// setUp makes the namespaces in which the cluster runs. $1 is a directory for files, $2 the first
// process. The kubelet would change these settings of the whole machine, so it sees them as changed
// already.
const setUp = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p "$1"/varlib/upper "$1"/varlib/work "$1"/kubelet /run/cdi
mount -t overlay -o lowerdir=/var/lib,upperdir="$1"/varlib/upper,workdir="$1"/varlib/work overlay /var/lib
mkdir -p /var/lib/kubelet /var/lib/softrnic
mount --bind "$1"/kubelet /var/lib/kubelet
for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1 vm/panic_on_oom=0; do
	file=$1/$(echo "${setting%=*}" | tr / .)
	echo "${setting#*=}" >"$file"
	mount --bind "$file" /proc/sys/"${setting%=*}"
done
mount --make-rshared /
ip link set lo up
ip link add node0 type veth peer name node1
ip addr add ` + nodeIP + `/24 dev node0
ip addr add ` + service + `/32 dev lo
ip link add rnic0 type veth peer name rnic1
for interface in node0 node1 rnic0 rnic1; do
	ip link set $interface up
done
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready
exec "$2"`

// newCluster starts a cluster, which ends with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, top: t, programs: programs(t)}
	var err error
	if c.dir, err = os.MkdirTemp("", "softrnic-kubernetes"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(c.dir); err != nil {
			t.Error(err)
		}
	})
	first := filepath.Join(c.dir, "init")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", first, "./testdata/init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	run(t, build)
	c.cgroups(true)
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", setUp, "sh", c.dir, first)
	said, ended := proc.Start(t, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		c.cgroups(false)
	})
	if err := said.WaitFor("ready", ended); err != nil {
		t.Fatal(err)
	}
	// unshare is the parent of the first process.
	children := run(t, exec.Command("cat", fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)))
	if _, err := fmt.Sscan(children, &c.init); err != nil {
		t.Fatalf("children of unshare: %q: %v", children, err)
	}
	c.certificates()
	c.files()
	c.start("etcd", "server", "--data-dir", c.dir+"/etcd", "--unsafe-no-fsync").await("ready to serve client requests")
	c.start("kube-apiserver", "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--secure-port=443", "--bind-address=0.0.0.0",
		"--advertise-address="+nodeIP, "--service-cluster-ip-range=10.96.0.0/24", "--tls-cert-file="+c.dir+"/api.crt",
		"--tls-private-key-file="+c.dir+"/api.key", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.dir+"/api.key", "--service-account-signing-key-file="+c.dir+"/api.key",
		"--token-auth-file="+c.dir+"/tokens", "--authorization-mode=Node,RBAC", "--allow-privileged",
		"--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP")
	c.eventually("the API server is ready", func() error {
		_, err := c.try("get", "--raw", "/readyz")
		return err
	})
	c.start("kube-scheduler", "kube-scheduler", "--kubeconfig="+c.dir+"/config", "--leader-elect=false",
		"--authentication-kubeconfig="+c.dir+"/config",
		"--authorization-kubeconfig="+c.dir+"/config")
	c.start("kube-controller-manager", "kube-controller-manager", "--kubeconfig="+c.dir+"/config", "--leader-elect=false",
		"--service-account-private-key-file="+c.dir+"/api.key", "--root-ca-file="+c.dir+"/ca.crt", "--use-service-account-credentials")
	c.start("containerd", "containerd", "--config", c.dir+"/containerd.toml").await("containerd successfully booted")
	c.startKubelet()
	c.eventually("the node is ready", func() error {
		got, err := c.try("get", "node", nodeName, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && got != "True" {
			err = fmt.Errorf("Ready is %q", got)
		}
		return err
	})
	return c
}

// cgroups creates or removes the cluster's cgroup in each hierarchy of version 1, or in version 2.
func (c *cluster) cgroups(create bool) {
	hierarchies := []string{"/sys/fs/cgroup"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		hierarchies, _ = filepath.Glob("/sys/fs/cgroup/*")
	}
	for _, h := range hierarchies {
		dir := filepath.Join(h, parentCgroup)
		if create {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				c.t.Fatal(err)
			}
			continue
		}
		var all []string
		_ = filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, name)
			}
			return nil
		})
		slices.Reverse(all)
		for _, d := range all {
			// The processes were killed, and may not have left yet.
			for try := 0; syscall.Rmdir(d) == syscall.EBUSY && try < 100; try++ {
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
}

// inside returns a command that runs in the cluster's namespaces.
func (c *cluster) inside(args ...string) *exec.Cmd {
	enter := []string{"-t", fmt.Sprint(c.init), "-m", "-n", "-p", "--", "setpriv", "--pdeathsig", "KILL"}
	cmd := exec.Command("nsenter", append(enter, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+c.programs+":/usr/sbin:/usr/bin:/sbin:/bin", "KUBECONFIG="+c.dir+"/config")
	return cmd
}

// start starts a program of the cluster. Its output is logged if the test fails.
func (c *cluster) start(name string, args ...string) *program {
	c.t.Helper()
	args[0] = filepath.Join(c.programs, args[0])
	p := &program{cmd: c.inside(args...)}
	p.said, p.ended = proc.Start(c.t, p.cmd)
	c.top.Cleanup(func() {
		p.kill()
		p.ended <- nil
		if c.top.Failed() {
			said := p.said.String()
			if len(said) > 1<<14 {
				said = "…" + said[len(said)-1<<14:]
			}
			c.top.Logf("%s:\n%s", name, said)
		}
	})
	return p
}

// await waits for a text in the output.
func (p *program) await(text string) {
	if err := p.said.WaitFor(text, p.ended); err != nil {
		panic(err)
	}
}

func (c *cluster) startKubelet() {
	c.kubelet = c.start("kubelet", "kubelet", "--config="+c.dir+"/kubelet.yaml", "--kubeconfig="+c.dir+"/kubelet.config", "--node-ip="+nodeIP,
		"--hostname-override="+nodeName)
}

// try runs kubectl.
func (c *cluster) try(args ...string) (string, error) {
	return output(c.inside(append([]string{filepath.Join(c.programs, "kubectl")}, args...)...))
}

// kubectl runs kubectl, which must succeed.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// eventually waits until a condition holds.
func (c *cluster) eventually(what string, holds func() error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Minute)
	defer cancel()
	for {
		err := holds()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("%s: not within three minutes: %v", what, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *cluster) write(name, text string) {
	c.t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(c.dir, name)), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// certificates creates a CA and the certificate of the API server. Its key also signs the tokens of
// service accounts.
func (c *cluster) certificates() {
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			c.t.Fatal(err)
		}
		return k
	}
	caKey, apiKey := key(), key()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	api := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "api"}, NotBefore: ca.NotBefore,
		NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(service), net.ParseIP(nodeIP)}}
	for _, f := range []struct {
		name string
		cert *x509.Certificate
		key  *ecdsa.PrivateKey
	}{{"ca", ca, caKey}, {"api", api, apiKey}} {
		der, err := x509.CreateCertificate(rand.Reader, f.cert, ca, f.key.Public(), caKey)
		if err != nil {
			c.t.Fatal(err)
		}
		secret, err := x509.MarshalECPrivateKey(f.key)
		if err != nil {
			c.t.Fatal(err)
		}
		c.write(f.name+".crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
		c.write(f.name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})))
	}
}

// files writes the configuration of the programs.
func (c *cluster) files() {
	c.write("tokens", "admin,admin,admin,system:masters\nnode,system:node:"+nodeName+",node,system:nodes\n")
	for name, token := range map[string]string{"config": "admin", "kubelet.config": "node"} {
		c.write(name, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:443", certificate-authority: `+c.dir+`/ca.crt}}]
users: [{name: u, user: {token: `+token+`}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`)
	}
	c.write("kubelet.yaml", `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /`+parentCgroup+`
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 50Mi, nodefs.available: 100Mi, imagefs.available: 100Mi}
registerNode: true
`)
	c.write("containerd.toml", `version = 3
root = "`+c.dir+`/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "localhost/pause:latest"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true # root of a virtual machine may lack CAP_SYS_RESOURCE
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "`+c.dir+`/cni"
`)
	c.write("cni/10-bridge.conflist", `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "`+c.dir+`/ipam"}}]}`)
}

// image packs a directory as an image, or builds that of softrnic if there is none, and gives it to
// containerd.
func (c *cluster) image(name, from, entry string) {
	c.t.Helper()
	archive := filepath.Join(c.dir, "image.tar")
	run(c.t, exec.Command("go", "run", "github.com/softrnic/softrnic/cmd/dropin/build", "-image", archive, "-name", name, "-from", from,
		"-prefix", "/opt/softrnic", "-entrypoint", entry))
	run(c.t, c.inside(filepath.Join(c.programs, "ctr"), "-n", "k8s.io", "images", "import", archive))
	if err := os.Remove(archive); err != nil {
		c.t.Fatal(err)
	}
}

// driver returns the root directory of the image of the DRA driver.
func (c *cluster) driver() (dir string) {
	c.t.Helper()
	dir, err := os.MkdirTemp(c.dir, "image")
	if err != nil {
		c.t.Fatal(err)
	}
	prefix := filepath.Join(dir, "opt/softrnic")
	run(c.t, exec.Command("go", "run", "github.com/softrnic/softrnic/cmd/dropin/build", "-prefix", prefix))
	build := exec.Command("go", "build", "-C", "../../../cmd/softrnic/kubernetes/softrnic-dra", "-trimpath", "-ldflags", "-s -w", "-o",
		filepath.Join(prefix, "bin/softrnic-dra"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	run(c.t, build)
	return dir
}

// tree returns a directory with programs of this machine and what they need: the root directory of
// an image.
func (c *cluster) tree(programs ...string) (dir string) {
	c.t.Helper()
	dir, err := os.MkdirTemp(c.dir, "image")
	if err != nil {
		c.t.Fatal(err)
	}
	files := map[string]bool{}
	unwind, err := filepath.Glob("/lib/*/libgcc_s.so.1") // glibc's pthread_exit loads it
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range unwind {
		files[f] = true
	}
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			c.t.Fatal(err)
		}
		files[path] = true
		for word := range strings.FieldsSeq(run(c.t, exec.Command("ldd", path))) {
			if filepath.IsAbs(word) {
				files[word] = true
			}
		}
	}
	for f := range files {
		to := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			c.t.Fatal(err)
		}
		run(c.t, exec.Command("cp", "-L", f, to))
	}
	if err := os.Symlink("usr/bin", filepath.Join(dir, "bin")); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// get returns an object of the API server.
func (c *cluster) get(v any, args ...string) error {
	out, err := c.try(append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), v)
}
