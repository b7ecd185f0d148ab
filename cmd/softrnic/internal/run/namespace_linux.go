package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownNamespaces has a child begin in a mount namespace of its own, with the capability to mount. Who has that capability already
// keeps all others too: a user namespace would take them, and with it there is one user only. Others get a user namespace,
// in which they are the same user.
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

// effectiveCapabilities is a bit for each of this process's capabilities.
func effectiveCapabilities() (uint64, error) {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return 0, fmt.Errorf("capabilities: %w", err)
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}

// The directories that get entries, below the directory that describe fills.
const (
	sysClass = "sys/class"
	dev      = "dev"
)

// tryMounts is the value of --inside with which runInside only finds out whether it may mount.
const tryMounts = "-"

// runInside mounts what describe has made, gives up the capability that the user namespace gave, and runs the program.
func (c *Command) runInside() error {
	// Nothing that is mounted here is to be seen outside. A new user namespace has that by itself.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts inside: %w", err)
	}
	if c.Inside == tryMounts {
		return unix.Mount("softrnic", "/"+sysClass, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755")
	}
	for _, d := range []string{sysClass, dev} {
		if err := c.addTo("/"+d, filepath.Join(c.Inside, d)); err != nil {
			return fmt.Errorf("%s: %w (--sysfs off does without)", d, err)
		}
	}
	// The namespace has a copy: so nothing is left if the command that made it is killed.
	if err := os.RemoveAll(c.Inside); err != nil {
		return err
	}
	runtime.LockOSThread() // exec keeps what this thread has
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil { // which wait has set for the first thread only
		return fmt.Errorf("end with the command: %w", err)
	}
	return c.exec(os.Environ())
}

// addTo gives dir the entries of from besides its own. A directory of the kernel's takes no new entries: so dir becomes a file
// system of its own, in which each entry is the old one, or a copy of the new.
func (c *Command) addTo(dir, from string) (err error) {
	old, err := os.MkdirTemp(c.Inside, "old")
	if err != nil {
		return err
	}
	if err := unix.Mount(dir, old, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", dir, err)
	}
	// Or what is below it would be removed with what describe has made.
	defer func() { err = errors.Join(err, unix.Unmount(old, unix.MNT_DETACH)) }()
	if err := unix.Mount("softrnic", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		return err
	}
	entries, err := os.ReadDir(old)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := mirror(filepath.Join(old, e.Name()), filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// mirror makes to the same as from. The error is os.ErrExist if there is something already.
func mirror(from, to string) error {
	info, err := os.Lstat(from)
	switch {
	case err != nil:
		return err
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case info.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	default:
		f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	return nil
}
