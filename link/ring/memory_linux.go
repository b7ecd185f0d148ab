package ring

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Seals are the seals of a ring's memory. They fix its size.
const Seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// NewMemory creates sealed memory for a ring of n bytes. The descriptor is for the peer.
func NewMemory(n int) (fd int, b []byte, err error) {
	fd, err = unix.MemfdCreate("softrnic-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("memfd_create: %w", err)
	}
	err = unix.Ftruncate(fd, int64(MemoryLen(n)))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, Seals)
	}
	if err == nil {
		b, err = mapMemory(fd, MemoryLen(n))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("memory of a ring of %d bytes: %w", n, err)
	}
	return fd, b, nil
}

// mapPeer maps the memory of a ring of n bytes that a peer has created. It fails unless the
// descriptor is a memfd of the right size, sealed so that the peer cannot truncate it.
func mapPeer(fd, n int) ([]byte, error) {
	if err := checkMemory(fd, n); err != nil {
		return nil, err
	}
	return mapMemory(fd, MemoryLen(n))
}

func checkMemory(fd, n int) error {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("the peer's descriptor is not a memfd: %w", err)
	}
	if need := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW; have&need != need {
		return fmt.Errorf("the peer's memory has seals %#x, want %#x", have, need)
	}
	if have&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return fmt.Errorf("the peer's memory has seals %#x and is read-only", have)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("the peer's memory is on a file system of type %#x, want tmpfs", fs.Type)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Size != int64(MemoryLen(n)) {
		return fmt.Errorf("the peer's memory has %d bytes, its hello says %d", st.Size, MemoryLen(n))
	}
	return nil
}

func mapMemory(fd, n int) ([]byte, error) {
	return unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// Send sends a message with a descriptor, such as that of a ring's memory.
func Send(conn *net.UnixConn, message []byte, fd int) error {
	return retryTooManyRefs(func() error {
		_, _, err := conn.WriteMsgUnix(message, unix.UnixRights(fd), nil)
		return err
	})
}

// TrySend is Send without waiting: the error is EAGAIN if the socket's buffer is full. Nil rights
// send no descriptors.
func TrySend(conn *net.UnixConn, message, rights []byte) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return retryTooManyRefs(func() error {
		var err error
		closed := raw.Write(func(fd uintptr) bool {
			for {
				err = unix.Sendmsg(int(fd), message, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
				if err != unix.EINTR {
					return true
				}
			}
		})
		return cmp.Or(closed, err)
	})
}

// retryTooManyRefs calls send, which sends a descriptor, until it no longer fails with
// ETOOMANYREFS. Linux limits the descriptors that all programs of an unprivileged user have in
// flight. These are soon received, or closed with their socket. A retry therefore succeeds within a
// short time.
func retryTooManyRefs(send func() error) error {
	for end := time.Now().Add(tooManyRefsTimeout); ; time.Sleep(time.Millisecond) {
		if err := send(); !errors.Is(err, unix.ETOOMANYREFS) || time.Now().After(end) {
			return err
		}
	}
}

const tooManyRefsTimeout = time.Second

// Receive receives a message and its descriptors, which the caller closes. The kernel closes those
// after the second.
func Receive(conn *net.UnixConn, message []byte) (n int, fds []int, err error) {
	rights := make([]byte, rightsLen)
	n, rn, _, _, err := conn.ReadMsgUnix(message, rights) // with MSG_CMSG_CLOEXEC
	return n, descriptors(rights[:rn]), err
}

// rightsLen has room for two descriptors, so that a message with more than one is recognised.
var rightsLen = unix.CmsgSpace(2 * 4)

// descriptors returns the descriptors in a control message.
func descriptors(rights []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	for i := range messages {
		if f, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, f...)
		}
	}
	return fds
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
