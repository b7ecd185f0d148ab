package powercut

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Requests of FUSE (linux/fuse.h). All numbers are in the byte order of the machine.
const (
	fuseForget      = 2
	fuseGetattr     = 3
	fuseOpen        = 14
	fuseRead        = 15
	fuseWrite       = 16
	fuseStatfs      = 17
	fuseRelease     = 18
	fuseFsync       = 20
	fuseFlush       = 25
	fuseInit        = 26
	fuseInterrupt   = 36
	fuseDestroy     = 38
	fuseBatchForget = 42
	fuseFallocate   = 43
)

const (
	fuseHeader   = 40 // of a request
	fuseReply    = 16 // the header of a reply
	fuseBlockLen = physical
	fuseMaxWrite = 128 << 10
	fuseBufLen   = fuseMaxWrite + 4096
)

// serve mounts a file system on a file until the end of the test: it consists of one file, which
// has the content of the disk. The kernel keeps no writes back, so that it calls the disk for each.
func serve(t testing.TB, d *Disk, at string) error {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0", fd, unix.S_IFREG)
	if err := unix.Mount("powercut", at, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = unix.Close(fd)
		return err
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for buf := make([]byte, fuseBufLen); ; {
			n, err := unix.Read(fd, buf)
			switch {
			case err == unix.EINTR, err == unix.ENOENT: // the request was interrupted
				continue
			case err != nil: // ENODEV: it is unmounted
				return
			}
			if reply := d.request(buf[:n]); reply != nil {
				_, _ = unix.Write(fd, reply)
			}
		}
	})
	t.Cleanup(func() {
		// Other mount namespaces may have got copies of the mounts, whatever this process unmounts.
		_ = unix.Unmount(at, unix.MNT_FORCE)
		_ = unix.Unmount(at, unix.MNT_DETACH)
		serving.Wait()
		_ = unix.Close(fd)
	})
	return nil
}

// request executes a request, and returns the reply, or nil if there is none.
func (d *Disk) request(b []byte) []byte {
	e := binary.NativeEndian
	opcode, args := e.Uint32(b[4:]), b[fuseHeader:]
	reply := make([]byte, fuseReply, 128)
	numbers := func(list ...any) {
		for _, v := range list {
			switch v := v.(type) {
			case int:
				reply = e.AppendUint32(reply, uint32(v))
			case uint64:
				reply = e.AppendUint64(reply, v)
			}
		}
	}
	failed := syscall.Errno(0)
	switch opcode {
	case fuseForget, fuseBatchForget, fuseInterrupt:
		return nil
	case fuseInit:
		const major, minor, bigWrites = 7, 31, 1 << 5
		numbers(major, minor, 0, bigWrites, 0, fuseMaxWrite, 1)
		reply = append(reply, make([]byte, 36)...)
	case fuseGetattr:
		const inode = 1
		size := uint64(len(d.content))
		numbers(uint64(1<<30), 0, 0, uint64(inode), size, size/logical, uint64(0), uint64(0), uint64(0), 0, 0, 0)
		numbers(unix.S_IFREG|0o600, 1, 0, 0, 0, fuseBlockLen, 0)
	case fuseOpen:
		numbers(uint64(0), 0, 0)
	case fuseStatfs: // without it a loop device has no discards
		none := uint64(0)
		numbers(uint64(len(d.content))/fuseBlockLen, none, none, none, none, fuseBlockLen, 255, fuseBlockLen, 0)
		reply = append(reply, make([]byte, 24)...)
	case fuseRead:
		off, n := int(e.Uint64(args[8:])), int(e.Uint32(args[16:]))
		d.mu.Lock()
		reply = append(reply, d.content[min(off, len(d.content)):min(off+n, len(d.content))]...)
		d.mu.Unlock()
	case fuseWrite:
		const head = 40
		off, n := int(e.Uint64(args[8:])), int(e.Uint32(args[16:]))
		d.write(off, args[head:head+n])
		numbers(n, 0)
	case fuseFallocate: // a hole, or zeros
		off, n := int(e.Uint64(args[8:])), int(e.Uint64(args[16:]))
		if e.Uint32(args[24:])&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
			failed = unix.EOPNOTSUPP
			break
		}
		d.write(off, make([]byte, n))
	case fuseFsync:
		d.flush()
	case fuseRelease, fuseFlush, fuseDestroy:
	default:
		failed = unix.ENOSYS
	}
	if failed != 0 {
		reply = reply[:fuseReply]
	}
	e.PutUint32(reply, uint32(len(reply)))
	e.PutUint32(reply[4:], uint32(-int32(failed)))
	copy(reply[8:fuseReply], b[8:16])
	return reply
}
