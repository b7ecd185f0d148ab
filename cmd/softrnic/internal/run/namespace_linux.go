package run

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownNamespaces starts a child in a new mount namespace with the capability to mount. A user with
// that capability needs no user namespace, which would remove other capabilities and have a single
// user. Other users get a user namespace, in which they are the same user.
func ownNamespaces() *syscall.SysProcAttr {
	if hasCapability(unix.CAP_SYS_ADMIN) {
		return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
	}
}

// hasCapability reports whether this process has a capability in effect.
func hasCapability(number uint) bool {
	caps, err := effectiveCapabilities()
	return err == nil && caps&(1<<number) != 0
}

// effectiveCapabilities returns a bit for each of this process's capabilities.
func effectiveCapabilities() (uint64, error) {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return 0, fmt.Errorf("capabilities: %w", err)
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}
