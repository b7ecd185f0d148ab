package nfs

import (
	"io/fs"
	"os"

	"github.com/willscott/go-nfs/file"
	"golang.org/x/sys/unix"
)

// openFileFlag keeps the opening of a FIFO from waiting for a writer.
const openFileFlag = unix.O_NONBLOCK

// Identity returns the inode's number, and its time of birth as the generation, where the file
// system has one. Files of other file systems, which are mounted in the tree, have other
// generations.
func (d *directory) Identity(name string, info fs.FileInfo) identity {
	sys, ok := info.Sys().(*file.FileInfo)
	if !ok {
		return identity{}
	}
	id := identity{number: sys.Fileid}
	var st unix.Statx_t
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_STATX_DONT_SYNC
	if name == "" || unix.Statx(int(d.top.Fd()), name, flags, unix.STATX_INO|unix.STATX_BTIME, &st) != nil || st.Ino != id.number {
		return id
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.generation = uint64(st.Btime.Sec)*1e9 + uint64(st.Btime.Nsec)
	}
	if device := uint64(st.Dev_major)<<32 | uint64(st.Dev_minor); device != d.device {
		id.generation ^= device * 0x9e3779b97f4a7c15
	}
	return id
}

func (d *directory) Space() (space, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.top.Fd()), &st); err != nil {
		return space{}, err
	}
	block := uint64(st.Bsize)
	return space{st.Blocks * block, st.Bfree * block, st.Bavail * block, st.Files, st.Ffree}, nil
}

// deviceOf returns the device of the file system of an open file, or 0.
func deviceOf(fd int) uint64 {
	var st unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO, &st) != nil {
		return 0
	}
	return uint64(st.Dev_major)<<32 | uint64(st.Dev_minor)
}

const syncsDirectories = true

// syncFileSystem brings all of a file's file system to stable storage.
func syncFileSystem(f *os.File) error {
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return os.NewSyscallError("syncfs", err)
	}
	return nil
}
