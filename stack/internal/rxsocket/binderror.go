package rxsocket

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/softrnic/softrnic/stack"
)

// bindError explains why UDP port 4791 of an address cannot be bound, and gives advice.
func bindError(a netip.Addr, err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("UDP port %d of %v: %w", stack.RoCEPort, a, err)
	}
	uid, known := holder(a)
	return inUse(a, uid, known)
}

// inUse returns the error for a port that is in use. uid is the user of the socket, if known.
func inUse(a netip.Addr, uid int, known bool) error {
	cure := "use another of this machine's addresses"
	if a.Is4() && a.IsLoopback() {
		cure += ", as any of 127.0.0.0/8 is"
	}
	if rxe := rxeDevices("/sys/class/infiniband"); len(rxe) > 0 {
		return fmt.Errorf("UDP port %d of %v is in use, probably by the kernel's %s: %s, or run rdma link delete %s, "+
			"or end the process that ss -ulpn sport = :%d shows: %w",
			stack.RoCEPort, a, strings.Join(rxe, ", "), cure, strings.Fields(rxe[0])[0], stack.RoCEPort, syscall.EADDRINUSE)
	}
	if known && uid != os.Geteuid() {
		return fmt.Errorf("UDP port %d of %v is in use by a process of user %d, and this is user %d: end that process, and have the "+
			"hub of the machine serve both (systemctl start softrnic-hub, or softrnic hub --system), run both as one user, "+
			"have the program open its device before it becomes another user, or %s: %w",
			stack.RoCEPort, a, uid, os.Geteuid(), cure, syscall.EADDRINUSE)
	}
	if runtime.GOOS == "linux" { // where there are hubs
		cure = "if it is another SoftRNIC of yours, use --shared (kernel.Shared) for both; otherwise " + cure
	}
	return fmt.Errorf("UDP port %d of %v is in use, by another SoftRNIC or another RoCE program: %s, "+
		"or end the process that ss -ulpn sport = :%d shows: %w",
		stack.RoCEPort, a, cure, stack.RoCEPort, syscall.EADDRINUSE)
}

// rxeDevices returns the names of the kernel's software RDMA devices, which occupy port 4791 of all
// addresses of the machine. dir is a directory like /sys/class/infiniband. Only the entries of rxe
// in it name a network interface.
func rxeDevices(dir string) (names []string) {
	parents, _ := filepath.Glob(filepath.Join(dir, "*", "parent"))
	for _, p := range parents {
		if b, err := os.ReadFile(p); err == nil {
			names = append(names, filepath.Base(filepath.Dir(p))+" on "+strings.TrimSpace(string(b)))
		}
	}
	return names
}
