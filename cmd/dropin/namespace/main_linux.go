// Command namespace is the program of softrnic run in a new mount namespace. It mounts the files
// of the devices, which softrnic run creates meanwhile, and runs the user's program in its place.
//
//	softrnic-namespace SOCKET LIBRARY COMMAND DIR PROGRAM [ARGUMENT...]
//
// SOCKET is the number of a descriptor, LIBRARY the file of the preloaded library, and COMMAND that
// of the command softrnic. DIR is an empty directory.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/namespace"
)

func main() {
	if len(os.Args) < 6 {
		fmt.Fprintln(os.Stderr, "softrnic-namespace: softrnic run starts this program")
		os.Exit(2)
	}
	fd, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "softrnic-namespace: the number of a descriptor:", err)
		os.Exit(2)
	}
	to, err := namespace.NewInside(fd)
	if err != nil {
		fmt.Fprintln(os.Stderr, "softrnic-namespace:", err)
		os.Exit(1)
	}
	library, command, files, program := os.Args[2], os.Args[3], os.Args[4], os.Args[5:]
	umask := unix.Umask(0) // other users read what is created here, too
	dir, err := mountFiles(files)
	if err != nil {
		to.NoMount(err)
		os.Exit(1)
	}
	if to.Pass(dir) != nil {
		os.Exit(1) // softrnic run has ended, and said why
	}
	err = dir.Close()
	if err == nil {
		err = addAll(files, library, command, program[0])
	}
	if err != nil {
		to.Failed(err)
		os.Exit(1)
	}
	runtime.LockOSThread() // exec keeps this thread's attributes
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		to.Failed(fmt.Errorf("drop capabilities: %w", err))
		os.Exit(1)
	}
	// softrnic run has set it for the first thread only.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		to.Failed(fmt.Errorf("end with the command: %w", err))
		os.Exit(1)
	}
	unix.Umask(umask)
	os.Exit(namespace.NotRun(namespace.Exec(program, os.Environ())))
}

// mountFiles mounts a file system in memory on a directory. Its files are gone when the
// process is killed.
func mountFiles(files string) (*os.File, error) {
	// Mounts here must not be visible outside. A new user namespace guarantees that itself.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, fmt.Errorf("keep mounts inside: %w", err)
	}
	const class = "/" + namespace.Class
	if err := unix.Mount("softrnic", class, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755"); err != nil {
		return nil, fmt.Errorf("mount on %s: %w", class, err)
	}
	if err := unix.Unmount(class, 0); err != nil { // it was a trial: softrnic run can still preload a library instead
		return nil, fmt.Errorf("unmount %s: %w", class, err)
	}
	if err := unix.Mount("softrnic", files, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return nil, fmt.Errorf("mount a tmpfs on %s: %w", files, err)
	}
	return os.Open(files)
}

// addAll adds the files to the kernel's, and lets programs that ask the kernel by netlink see the
// devices. The directory of the files is then no longer mounted and exists no longer.
func addAll(files, library, command, program string) error {
	if err := os.MkdirAll(filepath.Join(files, namespace.Covered), 0o755); err != nil {
		return err
	}
	for _, d := range []string{namespace.Devices, namespace.Class, namespace.Bus, namespace.Module, namespace.Dev} {
		if _, err := os.Lstat(filepath.Join(files, d)); err != nil {
			continue // without a card, or a GPU
		}
		if err := addTo(files, d); err != nil {
			return fmt.Errorf("%s: %w (--sysfs off does without)", d, err)
		}
	}
	if err := coverNetlinkPrograms(library, command, program); err != nil {
		return fmt.Errorf("answer netlink: %w (--sysfs off does without)", err)
	}
	if err := unix.Unmount(files, unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Remove(files)
}
