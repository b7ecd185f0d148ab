//go:build linux

package peer

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/apt"
)

//go:embed image.sh
var imageScript []byte

//go:embed init.sh
var initScript []byte

// image is the boot image of a peer.
type image struct {
	dir string // holds kernel, initramfs, disk and packages
	kvm bool   // whether it boots under KVM here
	Kernel
	versions string
}

func (i *image) kernel() string    { return filepath.Join(i.dir, "kernel") }
func (i *image) initramfs() string { return filepath.Join(i.dir, "initramfs") }
func (i *image) disk() string      { return filepath.Join(i.dir, "disk") }

// findImage returns the image in the user's cache, and creates it if it does not exist. The
// directory is named after its suite and all its inputs except Debian's packages. One process at a
// time creates an image, the others wait.
func findImage() (*image, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cache := filepath.Join(user, "softrnic-peer")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.Create(filepath.Join(cache, "lock"))
	if err != nil {
		return nil, err
	}
	defer lock.Close() // and unlock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}

	if err := installTools(); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	agent, err := buildAgent(work)
	if err != nil {
		return nil, err
	}
	suite := gate.Suite()
	archives, ok := suites[suite]
	if !ok {
		return nil, fmt.Errorf("%s is %q: must be one of %s", gate.SuiteVariable, suite,
			strings.Join(slices.Sorted(maps.Keys(suites)), ", "))
	}
	i := &image{dir: filepath.Join(cache, suite+"-"+recipeHash(agent))}
	if _, err := os.Stat(i.initramfs()); err != nil {
		if err := i.make(work, suite, archives); err != nil {
			return nil, err
		}
	}
	packages, err := os.ReadFile(filepath.Join(i.dir, "packages"))
	if err != nil {
		return nil, err
	}
	var news []string
	if i.Kernel, i.versions, news, err = identify(string(packages)); err != nil {
		return nil, err
	}
	for _, n := range news {
		fmt.Fprintf(os.Stderr, "peer: Debian %s has %s\n", suite, n)
	}
	i.kvm = i.probeKVM()
	return i, nil
}

func recipeHash(agent []byte) string {
	h := sha256.New()
	for _, part := range [][]byte{imageScript, initScript, agent} {
		fmt.Fprintf(h, "%d\n", len(part))
		h.Write(part)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// buildAgent leaves the agent's binary in work and returns it.
func buildAgent(work string) ([]byte, error) {
	file := filepath.Join(work, "agent")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file,
		"github.com/softrnic/softrnic/tests/system/interop/peer/agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build of the peer's agent: %w\n%s", err, out)
	}
	return os.ReadFile(file)
}

// tools are the programs that tests and image.sh run on this machine, and their Debian packages.
var tools = map[string]string{
	qemu: "qemu-system-x86", "ip": "iproute2", "tshark": "tshark",
	"cpio": "cpio", "modprobe": "kmod", "mke2fs": "e2fsprogs", "xz": "xz-utils", "zstd": "zstd",
}

// installTools installs the missing ones.
func installTools() error {
	var missing []string
	for program, pkg := range tools {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	if missing == nil {
		return nil
	}
	slices.Sort(missing)
	fmt.Fprintln(os.Stderr, "peer: installing", strings.Join(missing, ", "))
	return apt.Install(missing)
}

func (i *image) make(work, suite string, archives []string) error {
	fmt.Fprintf(os.Stderr, "peer: making the Linux peer's image of Debian %s with apt-get, which takes a few minutes\n", suite)
	script, init := filepath.Join(work, "image.sh"), filepath.Join(work, "init.sh")
	if err := os.WriteFile(script, imageScript, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(init, initScript, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("bash", append([]string{script, filepath.Join(work, "agent"), init}, archives...)...)
	cmd.Dir = work
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("making the peer's image: %w; the last it said:\n%s", err, tail(out, 15))
	}
	if err := os.RemoveAll(i.dir); err != nil {
		return err
	}
	if err := os.Mkdir(i.dir, 0o755); err != nil {
		return err
	}
	// initramfs comes last: it marks the image as complete.
	for _, name := range []string{"kernel", "disk", "packages", "initramfs"} {
		if err := os.Rename(filepath.Join(work, name), filepath.Join(i.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// probeKVM reports whether this kernel runs under KVM here. Opening /dev/kvm does not show it: in
// some nested hypervisors a guest hangs. The result is cached until the machine restarts.
func (i *image) probeKVM() bool {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	f.Close()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false
	}
	known := filepath.Join(i.dir, "kvm")
	if b, err := os.ReadFile(known); err == nil && bytes.HasPrefix(b, boot) {
		return bytes.HasSuffix(b, []byte("yes"))
	}
	// Without a root file system the kernel panics as soon as it has started, and qemu ends.
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
	defer cancel()
	answer := "no"
	if exec.CommandContext(ctx, qemu, "-accel", "kvm", "-cpu", "max", "-m", "256", "-nodefaults", "-vga", "none",
		"-display", "none", "-no-reboot", "-kernel", i.kernel(), "-append", "panic=-1").Run() == nil {
		answer = "yes"
	}
	_ = os.WriteFile(known, append(boot, answer...), 0o644) // only to be faster next time
	return answer == "yes"
}

// tail returns the last n lines of b.
func tail(b []byte, n int) string {
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
