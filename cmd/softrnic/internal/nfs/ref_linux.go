package nfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ref refers to a file without opening it (O_PATH), so it can be a FIFO or a device, and needs no
// rights to its data. All that is done goes through it, or by one name in a directory that it
// refers to: no symbolic link is followed, and it is not mistaken for what later has its name.
//
// Calls that do not take such a descriptor take its name in /proc.
type ref struct {
	fd     int
	device uint64 // of its file system, mixed for identities; 0: that of the export
}

// checkRefs returns an error if the system cannot do what ref needs.
func checkRefs() error {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		return fmt.Errorf("to export a directory, /proc must be mounted: %w", err)
	}
	return nil
}

// retry repeats a call that a signal has interrupted.
func retry(f func() error) error {
	for {
		if err := f(); err != syscall.EINTR {
			return err
		}
	}
}

func openat(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC|unix.O_LARGEFILE, mode)
		return err
	})
	return fd, err
}

func openRef(name string) (ref, error) {
	fd, err := openat(unix.AT_FDCWD, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return ref{}, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return ref{fd: fd}, nil
}

// statTop returns the attributes of the directory that is exported, and its device.
func (r ref) statTop() (attributes, uint64, error) { return statOf(r.fd, "", 0) }

func (r ref) close() error { return unix.Close(r.fd) }

// again returns another ref of a directory.
func (r ref) again() (ref, error) {
	fd, err := openat(unix.AT_FDCWD, r.proc(), unix.O_PATH|unix.O_DIRECTORY, 0)
	return ref{fd, r.device}, err
}

// proc is a name that leads to the file itself.
func (r ref) proc() string { return fmt.Sprint("/proc/self/fd/", r.fd) }

// lookup returns the file that has a name in the directory, with its attributes. top is the device
// of the export's file system.
func (r ref) lookup(name string, top uint64) (ref, attributes, error) {
	fd, err := openat(r.fd, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ref{}, attributes{}, err
	}
	child := ref{fd: fd}
	a, device, err := child.stat("", top)
	if err != nil {
		return ref{}, attributes{}, errors.Join(err, child.close())
	}
	child.device = device
	return child, a, nil
}

// stat returns the attributes of an entry of the directory, or with no name those of the file, and
// the device of its ref. top is the device of the export's file system.
func (r ref) stat(name string, top uint64) (a attributes, device uint64, err error) {
	if a, device, err = statOf(r.fd, name, 0); device == top {
		return a, 0, err
	}
	device *= 0x9e3779b97f4a7c15
	a.number ^= device
	return a, device, err
}

func (r ref) statAt(name string, top uint64) (attributes, error) {
	a, _, err := r.stat(name, top)
	return a, err
}

func (r ref) attributes() (attributes, error) {
	a, _, err := statOf(r.fd, "", r.device)
	return a, err
}

// kinds are the kinds of files by their bits of the mode.
var kinds = map[uint16]kind{unix.S_IFREG: kindRegular, unix.S_IFDIR: kindDirectory, unix.S_IFBLK: kindBlock,
	unix.S_IFCHR: kindCharacter, unix.S_IFLNK: kindSymlink, unix.S_IFSOCK: kindSocket, unix.S_IFIFO: kindFIFO}

// statOf returns the attributes of an entry of a directory, or with no name those of the file, and
// the device of its file system. The generation is the time of birth. A file system that does not
// have it may have another one in its handles.
func statOf(fd int, name string, mixed uint64) (a attributes, device uint64, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags = unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	err = retry(func() error {
		return unix.Statx(fd, name, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	})
	if err != nil {
		return attributes{}, 0, err
	}
	at := func(t unix.StatxTimestamp) time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }
	a = attributes{
		identity: identity{number: st.Ino ^ mixed}, mode: uint32(st.Mode) & modeBits, links: st.Nlink, uid: st.Uid, gid: st.Gid,
		size: st.Size, used: st.Blocks * 512, major: st.Rdev_major, minor: st.Rdev_minor,
		atime: at(st.Atime), mtime: at(st.Mtime), ctime: at(st.Ctime),
		kind: kinds[st.Mode&unix.S_IFMT],
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		a.generation = uint64(st.Btime.Sec)*1e9 + uint64(st.Btime.Nsec)
	} else if h, _, err := unix.NameToHandleAt(fd, name, flags&unix.AT_EMPTY_PATH); err == nil {
		a.generation = hash(string(h.Bytes()))
	}
	return a, uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), nil
}

func (r ref) access(rights uint32) bool {
	return unix.Faccessat(unix.AT_FDCWD, r.proc(), rights, unix.AT_EACCESS) == nil
}

// open opens a regular file.
func (r ref) open(write bool) (storeFile, error) {
	flags := unix.O_RDONLY
	if write {
		flags = unix.O_RDWR
	}
	fd, err := openat(unix.AT_FDCWD, r.proc(), flags, 0)
	if write && err == syscall.EACCES {
		fd, err = openat(unix.AT_FDCWD, r.proc(), unix.O_WRONLY, 0)
	}
	if err != nil {
		return nil, err
	}
	return openedFile(fd, r.device), nil
}

// linuxFile is an open file.
type linuxFile struct {
	*os.File
	device uint64
}

func openedFile(fd int, device uint64) storeFile {
	return linuxFile{os.NewFile(uintptr(fd), ""), device}
}

func (f linuxFile) Attributes() (attributes, error) {
	a, _, err := statOf(int(f.Fd()), "", f.device)
	return a, err
}

func (r ref) readlink() (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(r.fd, "", b)
	if err == syscall.ENOENT { // it is no symbolic link
		err = syscall.EINVAL
	}
	return string(b[:max(0, n)]), err
}

// list calls each with the entries of a directory. may is false for what is certainly no directory.
func (r ref) list(each func(name string, number uint64, may bool)) error {
	fd, err := openat(unix.AT_FDCWD, r.proc(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, 64<<10)
	for {
		var n int
		err := retry(func() (err error) {
			n, err = unix.Getdents(fd, buf)
			return err
		})
		if err != nil || n == 0 {
			return err
		}
		for b := buf[:n]; len(b) > 0; {
			// struct linux_dirent64: the inode, an offset, this structure's length, the type, the
			// name.
			const typeAt, nameAt = 18, 19
			length := binary.NativeEndian.Uint16(b[16:])
			name := unix.ByteSliceToString(b[nameAt:length])
			if name != "." && name != ".." {
				kind := b[typeAt]
				each(name, binary.NativeEndian.Uint64(b)^r.device, kind == unix.DT_DIR || kind == unix.DT_UNKNOWN)
			}
			b = b[length:]
		}
	}
}

func (r ref) create(name string, mode uint32) (storeFile, error) {
	fd, err := openat(r.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, err
	}
	return openedFile(fd, r.device), nil
}

func (r ref) mkdir(name string, mode uint32) error { return unix.Mkdirat(r.fd, name, mode) }

func (r ref) symlink(target, name string) error { return unix.Symlinkat(target, r.fd, name) }

func (r ref) mknod(name string, k kind, mode uint32) error {
	return unix.Mknodat(r.fd, name, mode|map[kind]uint32{kindFIFO: unix.S_IFIFO, kindSocket: unix.S_IFSOCK}[k], 0)
}

func (r ref) link(file ref, name string) error {
	return unix.Linkat(unix.AT_FDCWD, file.proc(), r.fd, name, unix.AT_SYMLINK_FOLLOW)
}

func (r ref) remove(name string, directory bool) error {
	flags := 0
	if directory {
		flags = unix.AT_REMOVEDIR
	}
	return unix.Unlinkat(r.fd, name, flags)
}

func (r ref) rename(from string, to ref, name string) error {
	return unix.Renameat(r.fd, from, to.fd, name)
}

func (r ref) chmod(mode uint32) error { return unix.Fchmodat(unix.AT_FDCWD, r.proc(), mode, 0) }

func (r ref) chown(uid, gid int) error {
	return unix.Fchownat(r.fd, "", uid, gid, unix.AT_EMPTY_PATH)
}

func (r ref) chtimes(atime, mtime time.Time) error {
	times := make([]unix.Timespec, 2)
	for i, t := range []time.Time{atime, mtime} {
		var err error
		if times[i], err = unix.TimeToTimespec(t); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, r.proc(), times, 0)
}

// errUnopened says that a file cannot be opened for a sync.
var errUnopened = errors.New("it cannot be opened")

func (r ref) sync(k kind) error {
	var fd int
	var err error
	switch k {
	case kindRegular:
		if fd, err = openat(unix.AT_FDCWD, r.proc(), unix.O_RDONLY, 0); err == syscall.EACCES {
			fd, err = openat(unix.AT_FDCWD, r.proc(), unix.O_WRONLY, 0)
		}
	case kindDirectory:
		fd, err = openat(unix.AT_FDCWD, r.proc(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	default:
		return errUnopened
	}
	if err != nil {
		return errors.Join(errUnopened, err)
	}
	err = retry(func() error { return unix.Fsync(fd) })
	return errors.Join(err, unix.Close(fd))
}

// syncAll brings all of a directory's file system to stable storage.
func (r ref) syncAll() error {
	fd, err := openat(unix.AT_FDCWD, r.proc(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

func (r ref) space() (space, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(r.fd, &st); err != nil {
		return space{}, err
	}
	block := uint64(st.Bsize)
	return space{st.Blocks * block, st.Bfree * block, st.Bavail * block, st.Files, st.Ffree}, nil
}
