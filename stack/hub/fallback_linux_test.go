package hub_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// refuseSteering makes the kernel refuse all threads of this process to steer (ENOPROTOOPT), as
// kernels before Linux 4.5 do.
func refuseSteering() error {
	// Offsets in struct seccomp_data, of the lower halves of the arguments.
	const nr, level, option = 0, 24, 32
	if runtime.GOARCH == "386" || runtime.GOARCH == "s390x" || runtime.GOARCH == "ppc64" {
		return unix.ENOTSUP // socketcall, or other offsets
	}
	next := func(k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: skip}
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	p := []unix.SockFilter{load(nr), next(unix.SYS_SETSOCKOPT, 5), load(level), next(unix.SOL_SOCKET, 3), load(option),
		next(unix.SO_ATTACH_REUSEPORT_CBPF, 1), ret(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOPROTOOPT)), ret(unix.SECCOMP_RET_ALLOW)}
	program := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return nil
}

// serveUnsteered is a hub process on a kernel that cannot steer.
func serveUnsteered(dir string) error {
	if err := refuseSteering(); err != nil {
		return err
	}
	return hub.Serve(context.Background(), hub.Config{Directory: dir, Classifier: byBTH{}, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
}

// TestKernelCannotSteer checks that a hub relays all datagrams where the kernel cannot steer them,
// and logs that once.
func TestKernelCannotSteer(t *testing.T) {
	for _, x := range []struct{ addr, far string }{{"127.31.5.1", "127.31.5.2"}, {"fd00:5::1", "fd00:5::2"}} {
		t.Run(x.addr, func(t *testing.T) {
			if strings.Contains(x.addr, ":") {
				interfaces.Namespace(t)
				lo, err := netlink.LinkByName("lo")
				for _, a := range []string{x.addr, x.far} {
					if err == nil {
						ip := &net.IPNet{IP: net.ParseIP(a), Mask: net.CIDRMask(64, 128)}
						err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD})
					}
				}
				if err == nil {
					err = netlink.LinkSetUp(lo)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			dir := directory(t)
			log, err := os.Create(filepath.Join(t.TempDir(), "log"))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			cmd := exec.Command(os.Args[0])
			cmd.Env, cmd.Stderr = append(os.Environ(), roleEnv+"=unsteered", dirEnv+"="+dir), log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
			said := func() string { b, _ := os.ReadFile(log.Name()); return string(b) }
			await(t, "the hub is up", func() bool {
				if len(ended) > 0 {
					if strings.Contains(said(), unix.ENOTSUP.Error()) || strings.Contains(said(), unix.ENOSYS.Error()) {
						t.Skip("no seccomp filters of system calls' arguments here")
					}
					t.Fatalf("the hub has ended: %s", said())
				}
				return hub.Running(dir)
			})
			wait := func(string) error { return nil }
			a, b, peer := join(t, dir, x.addr, wait), join(t, dir, x.addr, wait), outside(t, x.far)
			for round := range byte(50) {
				for _, e := range []*end{a, b} {
					peer.send(x.far, x.addr, packet(e.qpn(), 1000, round), packet(e.qpn(), 1000, round+1), packet(e.qpn(), 500, round+2))
				}
				// One superframe for both.
				peer.send(x.far, x.addr, packet(a.qpn(), 200, round+3), packet(b.qpn(), 200, round+3))
				a.own(round, round+1, round+2, round+3)
				b.own(round, round+1, round+2, round+3)
			}
			for _, e := range []*end{a, b} {
				e.nothing(peer, x.far, x.addr, packet(e.qpn(), 64, 99))
			}
			if n := strings.Count(said(), "the kernel cannot steer datagrams: the hub relays all"); n != 1 {
				t.Errorf("the hub has logged %d times that it relays:\n%s", n, said())
			}
		})
	}
}
