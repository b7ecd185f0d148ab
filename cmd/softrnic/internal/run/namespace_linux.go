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

// The directories that get entries, below the directory of tree.write.
const (
	sysClass   = "sys/class"
	sysDevices = "sys/devices"
	virtual    = sysDevices + "/virtual"
	dev        = "dev"
)

// merged are the directories below sysClass, sysDevices, sysBus and dev in which entries of the
// kernel remain beside those of tree. Elsewhere a directory of tree replaces the kernel's.
var merged = map[string]bool{
	virtual: true, pciBus: true, pciBus + "/devices": true, pciBus + "/drivers": true, classNet: true, classPCI: true,
	covered: true, // by a softrnic run outside, perhaps of another user
}

// tryMounts is the value of --inside with which runInside only checks whether it may mount.
const tryMounts = "-"

// runInside mounts the files of the devices, drops the capability of the user namespace, and runs
// the program.
func (c *Command) runInside() error {
	// Mounts here must not be visible outside. A new user namespace guarantees that itself.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts inside: %w", err)
	}
	if c.Inside == tryMounts {
		return unix.Mount("softrnic", "/"+sysClass, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755")
	}
	umask := unix.Umask(0) // other users read what is created here, too
	// No files are left if the command that creates them is killed.
	files := c.Inside
	if err := unix.Mount("softrnic", files, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", files, err)
	}
	if err := passDirectory(c.Pass, files); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(files, covered), 0o755); err != nil {
		return err
	}
	for _, d := range []string{sysDevices, sysClass, sysBus, sysModule, dev} {
		if _, err := os.Lstat(filepath.Join(files, d)); err != nil {
			continue // without a card, or a GPU
		}
		if err := addTo(files, d); err != nil {
			return fmt.Errorf("%s: %w (--sysfs off does without)", d, err)
		}
	}
	if err := c.coverNetlinkPrograms(); err != nil {
		return fmt.Errorf("answer netlink: %w (--sysfs off does without)", err)
	}
	if err := errors.Join(unix.Unmount(files, unix.MNT_DETACH), os.Remove(files)); err != nil {
		return err
	}
	runtime.LockOSThread() // exec keeps this thread's attributes
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	// The wait above has set it for the first thread only.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the command: %w", err)
	}
	unix.Umask(umask)
	return c.exec(os.Environ())
}

// addTo adds the entries of the directory d of files to the kernel's. A kernel directory accepts no
// new entries. So that of files takes its place, in whose file system the other entries are the old
// ones.
func addTo(files, d string) (err error) {
	dir, ours := "/"+d, filepath.Join(files, d)
	old, err := os.MkdirTemp(files, "old")
	if err != nil {
		return err
	}
	if err := unix.Mount(dir, old, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", dir, err)
	}
	// Nothing else keeps the kernel's entries visible below the old directory.
	defer func() { err = errors.Join(err, unix.Unmount(old, unix.MNT_DETACH), os.Remove(old)) }()
	if err := unix.Mount(ours, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", ours, dir, err)
	}
	return mirrorEntries(old, d)
}

// mirrorEntries mirrors the entries of old in a directory, except those that it has already.
func mirrorEntries(old, dir string) error {
	entries, err := os.ReadDir(old)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		err := mirror(filepath.Join(old, e.Name()), "/"+name)
		if errors.Is(err, os.ErrExist) {
			err = nil
			if merged[name] {
				err = mirrorEntries(filepath.Join(old, e.Name()), name)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mirror creates to as a mirror of from. The error is os.ErrExist if to exists.
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
