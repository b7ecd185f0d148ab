package shm

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/internal/ring"
)

// seals keep memory at its size for ever.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// newMemory makes sealed memory for a ring of n bytes. The descriptor is for the peer.
func newMemory(n int) (fd int, b []byte, err error) {
	fd, err = unix.MemfdCreate("softrnic-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("memfd_create: %w", err)
	}
	err = unix.Ftruncate(fd, int64(ring.MemoryLen(n)))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err == nil {
		b, err = mapMemory(fd, ring.MemoryLen(n))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("memory of a ring of %d bytes: %w", n, err)
	}
	return fd, b, nil
}

// checkMemory returns an error if a descriptor from a peer is not memory for a ring of n bytes that will always be there.
func checkMemory(fd, n int) error {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("the peer's descriptor is no memfd: %w", err)
	}
	if need := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW; have&need != need {
		return fmt.Errorf("the peer's memory has the seals %#x, and needs %#x", have, need)
	}
	if have&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return fmt.Errorf("the peer's memory has the seals %#x, and cannot be written", have)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("the peer's memory is of a file system of type %#x, and not tmpfs", fs.Type)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Size != int64(ring.MemoryLen(n)) {
		return fmt.Errorf("the peer's memory has %d bytes, and it says %d", st.Size, ring.MemoryLen(n))
	}
	return nil
}

func mapMemory(fd, n int) ([]byte, error) {
	return unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}
