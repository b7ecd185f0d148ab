//go:build linux && amd64

package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// The network of the test, and the addresses of the two containers.
const (
	network = "softrnic-test"
	subnet  = "10.89.77.0/24"
	server  = "10.89.77.10"
	client  = "10.89.77.11"
)

// containers is the number of containers so far.
var containers int

// user of the containers: neither is in an image.
const user = "4711:4712"

// lab has what all containers of the test share.
type lab struct {
	dir      string // with a root file system for each image
	softrnic string // the command
}

// command runs a command, and returns its output.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// needs ends the test unless a command is there.
func needs(t *testing.T, name, packages string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%v: install %s", err, packages)
	}
}

// debian creates the root file system of a release of Debian.
func (l *lab) debian(t *testing.T, release, variant, packages string) {
	t.Helper()
	args := []string{"--quiet", "--variant=" + variant, "--include=" + packages}
	if release != "bookworm" { // frozen mirrors have expired lists
		args = append(args, `--aptopt=Acquire::Check-Valid-Until "false"`)
	}
	command(t, "mmdebstrap", append(args, release, filepath.Join(l.dir, release), "http://deb.debian.org/debian")...)
}

// distroless creates a root file system of the files of single packages: a C library, and programs
// without libibverbs. It has no shell.
func (l *lab) distroless(t *testing.T, name string, more ...string) {
	t.Helper()
	debs, root := t.TempDir(), filepath.Join(l.dir, name)
	download := exec.Command("apt-get", append([]string{"download", "-qq", "libc6", "libpci3", "zlib1g", "libudev1", "perftest",
		"ibverbs-utils"}, more...)...)
	download.Dir = debs
	if out, err := download.CombinedOutput(); err != nil {
		t.Fatalf("apt-get download: %v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		command(t, "dpkg-deb", "--extract", f, root)
	}
	for _, d := range []string{"etc", "var"} {
		if err := os.RemoveAll(filepath.Join(root, d)); err != nil {
			t.Fatal(err)
		}
	}
}

// newLab builds the libraries, the root file systems and the network, and writes the specification.
func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("must be root")
	}
	needs(t, "podman", "podman")
	needs(t, "runc", "runc")
	needs(t, "iptables", "iptables") // of netavark
	needs(t, "mmdebstrap", "mmdebstrap")
	needs(t, "mpicc.openmpi", "libopenmpi-dev")
	dir, err := os.MkdirTemp("", "softrnic-containers")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l := &lab{dir, filepath.Join(dir, "prefix", "bin", "softrnic")}
	build := exec.Command("go", "run", "./cmd/dropin/build", "-prefix", filepath.Join(dir, "prefix"))
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	const tools = "ibverbs-utils,rdmacm-utils,perftest,ucx-utils,libfabric-bin,infiniband-diags,"
	l.debian(t, "bookworm", "essential", tools+"openmpi-bin,openssh-server,openssh-client")
	l.debian(t, "trixie", "essential", tools)
	l.debian(t, "bullseye", "extract", "libc6")
	l.distroless(t, "smallest")
	l.distroless(t, "distroless", "libgcc-s1", "libibumad3", "rdmacm-utils")

	programs, id := filepath.Join(dir, "programs"), filepath.Join(dir, "id")
	if err := errors.Join(os.Mkdir(programs, 0o755), os.Mkdir(id, 0o755)); err != nil {
		t.Fatal(err)
	}
	command(t, "mpicc.openmpi", "-O2", "-o", filepath.Join(programs, "mpi"), "../dropin/testdata/mpi.c")
	command(t, "gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(programs, "names"), "testdata/names.c")
	command(t, "cp", "testdata/sshd.sh", "testdata/mpirun.sh", programs)
	command(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(id, "id"))
	command(t, "chown", "-R", user, id)
	// The name that programs load, as a development package has it.
	if err := os.Symlink("libibverbs.so.1", filepath.Join(dir, "trixie/usr/lib/x86_64-linux-gnu/libibverbs.so")); err != nil {
		t.Fatal(err)
	}

	spec := "/etc/cdi/softrnic-test.json"
	command(t, l.softrnic, "cdi", "--rails", "2", "--output", spec)
	t.Cleanup(func() {
		if err := os.Remove(spec); err != nil {
			t.Error(err)
		}
	})
	_ = exec.Command("podman", "network", "rm", "-f", network).Run() // of a killed test
	command(t, "podman", "network", "create", "--subnet", subnet, network)
	t.Cleanup(func() { command(t, "podman", "network", "rm", "-f", network) })
	return l
}

// container is a command in a container without privileges. Its root file system and all else but
// /dev/shm is read-only.
func (l *lab) container(ctx context.Context, image, addr string, options []string, program ...string) *exec.Cmd {
	containers++
	name := fmt.Sprint("softrnic-test-", containers)
	args := []string{"--runtime", "runc", "run", "--rm", "--name", name, "--read-only", "--read-only-tmpfs=false", "--cap-drop=all",
		"--security-opt=no-new-privileges", "--user", user, "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096",
		"-v", l.dir + "/programs:/programs:ro", "-v", l.dir + "/id:/id:ro"}
	if addr != "" {
		args = append(args, "--network", network, "--ip", addr)
	}
	if options == nil {
		options = []string{"--device", "softrnic.dev/rnic=0"}
	}
	args = append(append(args, options...), "--rootfs", filepath.Join(l.dir, image)+":O")
	cmd := exec.CommandContext(ctx, "podman", append(args, program...)...)
	cmd.Cancel = func() error { return exec.Command("podman", "rm", "-f", "-t", "0", name).Run() }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// says runs a program in a container, and fails unless its output has the texts.
func (l *lab) says(t *testing.T, image string, options []string, program string, want ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := l.container(ctx, image, client, options, strings.Fields(program)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", image, program, err, out)
	}
	for _, w := range want {
		if !strings.Contains(string(out), w) {
			t.Errorf("%s: %s does not print %q:\n%s", image, program, w, out)
		}
	}
	return string(out)
}

// between runs a server and a client in a container each. The server is ready when it has printed a
// text, or when the client connects. It ends by itself if wait is set.
func (l *lab) between(t *testing.T, from, to, serve, ready, call string, wait bool, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// With a terminal, the server prints each line at once.
	s := l.container(ctx, to, server, []string{"--device", "softrnic.dev/rnic=0", "-t"}, strings.Fields(serve)...)
	said, ended := proc.Start(t, s)
	defer func() {
		cancel()
		<-ended
	}()
	if err := said.WaitFor(ready, ended); err != nil {
		t.Fatalf("%s: %s: %v:\n%s", to, serve, err, said)
	}
	var out []byte
	var err error
	for { // a server that prints nothing may not listen yet
		out, err = l.container(ctx, from, client, nil, strings.Fields(call)...).CombinedOutput()
		if err == nil || ready != "" || ctx.Err() != nil || len(ended) > 0 {
			break
		}
	}
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%s: %s: %v, without %q:\n%s\nthe server says\n%s", from, call, err, want, out, said)
	}
	if wait && err == nil {
		if err := <-ended; err != nil {
			t.Errorf("%s: %s: %v\n%s", to, serve, err, said)
		}
		ended <- nil
	}
	t.Logf("%s\n%s", call, out)
	logBandwidth(t, from+" to "+to, string(out))
}

// logBandwidth logs the result of ib_write_bw, if an output has one.
func logBandwidth(t *testing.T, between, out string) {
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 5 && f[0] == "65536" {
			t.Logf("result: ib_write_bw, %s: %s MB/s", between, f[3])
		}
	}
}

// TestCDI runs programs in containers of several images, of a user that no image knows, without
// privileges and with a read-only root file system. Their devices are those of softrnic cdi.
func TestCDI(t *testing.T) {
	gate.Long(t)
	l := newLab(t)
	t.Run("check", l.check)
	t.Run("seen", l.seen)
	for _, images := range [][2]string{{"bookworm", "trixie"}, {"trixie", "bookworm"}, {"distroless", "bookworm"}, {"trixie", "distroless"},
		{"smallest", "smallest"}} {
		from, to := images[0], images[1]
		t.Run(from+" to "+to, func(t *testing.T) {
			l.between(t, from, to, "ibv_rc_pingpong -g 1", "local address", "ibv_rc_pingpong -g 1 "+server, true, "1000 iters in")
			l.between(t, from, to, "ib_write_bw -n 1000", "Waiting for client", "ib_write_bw -n 1000 "+server, true, " 65536 ")
			if to == "smallest" {
				return
			}
			l.between(t, from, to, "ib_send_lat -R -n 1000", "Waiting for client", "ib_send_lat -R -n 1000 "+server, true, " 1000 ")
			l.between(t, from, to, "rping -s -v -C 5", "", "rping -c -v -C 5 -a "+server, true, "ping data: rdma-ping-4")
		})
	}
	t.Run("ucx", func(t *testing.T) {
		const perftest = "env UCX_TLS=rc_v,self UCX_NET_DEVICES=softrnic0:1 ucx_perftest"
		// Two releases of UCX do not connect, and trixie's program wants to be started by mpirun.
		l.between(t, "bookworm", "bookworm", perftest, "Waiting for connection", perftest+" "+server+" -t tag_bw -s 65536 -n 500", false,
			"Final:")
	})
	t.Run("mpi", func(t *testing.T) {
		l.between(t, "bookworm", "bookworm", "sh /programs/sshd.sh", "listening on", "sh /programs/mpirun.sh "+server, false,
			"2 ranks: all right")
	})
	t.Run("fault", l.fault)
	t.Run("pod", l.pod)
	t.Run("image", l.image)
}

// check: softrnic cdi --check tells images that can use the devices from others.
func (l *lab) check(t *testing.T) {
	if err := os.MkdirAll(filepath.Join(l.dir, "musl", "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.dir, "musl", "lib", "ld-musl-x86_64.so.1"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{"bookworm": "", "trixie": "", "distroless": "", "bullseye": "has glibc 2.31",
		"musl": "has musl (lib/ld-musl-x86_64.so.1) and no glibc"} {
		out, err := exec.Command(l.softrnic, "cdi", "--check", "--root", filepath.Join(l.dir, image)).CombinedOutput()
		if (want == "") != (err == nil) || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v: %s, want %q", image, err, out, want)
		}
	}
}

// fault: a program in a container meets a fault.
func (l *lab) fault(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	options := []string{"--device", "softrnic.dev/rnic=0", "--env", "SOFTRNIC_FAULT=reg_mr=ENOMEM"}
	out, err := l.container(ctx, "bookworm", client, options, "ibv_rc_pingpong", "-g", "0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Couldn't register MR") {
		t.Errorf("%v: %s", err, out)
	}
}

// seen: the devices are seen by verbs, in sysfs and in /dev, by any way of loading the library. A
// shell does not load the engine.
func (l *lab) seen(t *testing.T) {
	for _, image := range []string{"bookworm", "trixie", "distroless", "smallest"} {
		l.says(t, image, nil, "ibv_devinfo", "hca_id:\tsoftrnic0\n", "PORT_ACTIVE", "hca_id:\tsoftrnic0_iw\n")
	}
	all := []string{"--device", "softrnic.dev/rnic=1", "--device", "softrnic.dev/rnic=0"}
	l.says(t, "bookworm", all, "ibv_devices", "softrnic0 ", "softrnic0_iw ", "softrnic1 ", "softrnic1_iw ")
	if out := l.says(t, "bookworm", []string{"--device", "softrnic.dev/rnic=1"}, "ibv_devices", "softrnic1"); strings.Contains(out,
		"softrnic0") {
		t.Errorf("a container with device 1 has device 0:\n%s", out)
	}
	for _, image := range []string{"bookworm", "trixie"} {
		l.says(t, image, nil, "ls /sys/class/infiniband /dev/infiniband /sys/class/net", "softrnic0\nsoftrnic0_iw\n", "uverbs0\nuverbs1\n",
			"eth0\nlo\n")
		l.says(t, image, nil, "cat /sys/class/infiniband/softrnic0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a59:4d0b\n")
		l.says(t, image, nil, "fi_info -p verbs", "domain: softrnic0\n")
		l.says(t, image, nil, "ibstat softrnic0", "State: Active")
		l.says(t, image, nil, "env UCX_TLS=rc_v ucx_info -d", "Device: softrnic0:1")
		if out := l.says(t, image, nil, "cat /proc/self/maps", "libibverbs.so.1"); strings.Contains(out, "libsoftrnic.so") {
			t.Errorf("%s: every program loads the engine:\n%s", image, out)
		}
	}
	l.says(t, "trixie", nil, "/programs/names", "2 devices")
	l.says(t, "trixie", []string{"--device", "softrnic.dev/rnic=0", "-e", "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu", "-e",
		"LD_PRELOAD=libm.so.6"}, "/programs/names", "2 devices")
	l.says(t, "bookworm", nil, "env -i /usr/bin/ibv_devices", "softrnic0 ")
}

// pod: two containers of a user in the namespaces of a pod share its address.
func (l *lab) pod(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	device := []string{"--device", "softrnic.dev/rnic=0"}
	first := l.container(ctx, "bookworm", server, append(device, "-t", "--ipc=shareable"), "ib_write_bw", "-n", "1000")
	name := fmt.Sprint("container:softrnic-test-", containers)
	said, ended := proc.Start(t, first)
	defer func() {
		cancel()
		<-ended
	}()
	if err := said.WaitFor("Waiting for client", ended); err != nil {
		t.Fatalf("%v:\n%s", err, said)
	}
	second := l.container(ctx, "trixie", "", append(device, "--network", name, "--ipc", name), "ib_write_bw", "-n", "1000", server)
	out, err := second.CombinedOutput()
	if err != nil || !strings.Contains(string(out), " 65536 ") {
		t.Errorf("%v:\n%s\nthe server says\n%s", err, out, said)
	}
	logBandwidth(t, "within a pod", string(out))
}

// image: with one line of a Dockerfile, the steps of a build run programs on SoftRNIC, of root and
// of another user.
func (l *lab) image(t *testing.T) {
	archive, dir := filepath.Join(l.dir, "softrnic.tar"), t.TempDir()
	build := exec.Command("go", "run", "./cmd/dropin/build", "-image", archive)
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	command(t, "podman", "load", "-q", "-i", archive)
	const base, built = "localhost/softrnic-test:base", "localhost/softrnic-test:built"
	t.Cleanup(func() { command(t, "podman", "rmi", "-f", built, base, "localhost/softrnic") })
	root := filepath.Join(l.dir, "bookworm.tar")
	command(t, "tar", "-C", filepath.Join(l.dir, "bookworm"), "-cf", root, ".")
	command(t, "podman", "import", "-q", root, base)
	const lines = `FROM localhost/softrnic-test:base
COPY --from=localhost/softrnic / /
RUN softrnic run -- sh -c 'ibv_devices; ls /sys/class/infiniband'
USER 4711
RUN softrnic run -- ibv_devinfo && SOFTRNIC_DIRECTORY=/dev/shm softrnic run -- sh -c 'ib_write_bw -n 100 & \
 until grep -q ":4853 .* 0A " /proc/net/tcp*; do kill -0 $! || exit; sleep 0.1; done; ib_write_bw -n 100 127.0.0.1'
`
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	out := command(t, "podman", "build", "--runtime", "runc", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", "--no-cache",
		"-t", built, dir)
	for _, want := range []string{"softrnic0_iw    \t", "softrnic0\nsoftrnic0_iw\n", "hca_id:\tsoftrnic0\n", " 65536 "} {
		if !strings.Contains(out, want) {
			t.Errorf("the build does not print %q:\n%s", want, out)
		}
	}
}
