package powercut

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// Mount makes an ext4 file system on the disk, and mounts it until the end of the test.
func (d *Disk) Mount(t testing.TB, options ...string) (dir string) {
	t.Helper()
	if out, err := exec.Command("mkfs.ext4", append(append([]string{"-q", "-m", "0"}, options...), d.Device)...).CombinedOutput(); err != nil {
		t.Skipf("mkfs.ext4: %v %s", err, out)
	}
	dir, unmount, err := mount(d.Device)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(unmount)
	return dir
}

// Mounted calls f with the directory of an image's file system.
func Mounted(t testing.TB, image []byte, f func(dir string) error) error {
	fd, err := unix.MemfdCreate("image", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "image")
	defer func() { _ = file.Close() }()
	if _, err := file.Write(image); err != nil {
		return err
	}
	device, detach, err := attach(int(file.Fd()), 0)
	if err != nil {
		return err
	}
	defer detach()
	dir, unmount, err := mount(device)
	if err != nil {
		return err
	}
	defer unmount()
	return f(dir)
}

// mount mounts the ext4 file system of a device. The mount is in no namespace, and ends with its
// descriptor, and thus with this process.
func mount(device string) (dir string, unmount func(), err error) {
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err == nil {
		defer func() { _ = unix.Close(fs) }()
		err = unix.FsconfigSetString(fs, "source", device)
	}
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	fd := -1
	if err == nil {
		fd, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOATIME)
	}
	if err != nil {
		return "", nil, &os.PathError{Op: "mount", Path: device, Err: err}
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), func() { _ = unix.Close(fd) }, nil
}

// attach makes a loop device of a file, until detach is called, or this process ends, and nothing
// uses the device any more.
func attach(fd int, flags uint32) (device string, detach func(), err error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = control.Close() }()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", nil, err
		}
		loop, err := os.OpenFile(fmt.Sprint("/dev/loop", n), os.O_RDWR, 0)
		if err != nil {
			return "", nil, err
		}
		cfg := &unix.LoopConfig{Fd: uint32(fd), Size: logical, Info: unix.LoopInfo64{Flags: flags | unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), cfg)
		if err == nil {
			return loop.Name(), func() { _ = loop.Close() }, nil
		}
		_ = loop.Close()
		if err != unix.EBUSY { // otherwise another program was faster
			return "", nil, err
		}
	}
}
