//go:build linux

package vnet

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
)

// auxdata reads from a packet socket with PACKET_AUXDATA. The kernel removes the first VLAN tag of
// every received frame, and returns it in a control message.
type auxdata struct {
	msg     unix.Msghdr
	iov     unix.Iovec
	control [8]uint64 // room for a message of 16 and 20 bytes
}

const (
	auxdataAt  = unix.SizeofCmsghdr // offset of the data, which is aligned to the size of the header
	auxdataEnd = auxdataAt + int(unsafe.Sizeof(unix.TpacketAuxdata{}))
)

// read is a non-blocking recvmsg(2) into b. tag is the tag that was removed (TPID and TCI), or 0.
func (a *auxdata) read(fd int, b []byte) (n int, tag uint32, errno unix.Errno) {
	a.iov = iovec(b)
	control := unsafe.Pointer(&a.control)
	a.msg = unix.Msghdr{Iov: &a.iov, Control: (*byte)(control)}
	a.msg.SetIovlen(1)
	a.msg.SetControllen(int(unsafe.Sizeof(a.control)))
	r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&a.msg)), unix.MSG_DONTWAIT)
	if errno != 0 || int(a.msg.Controllen) < auxdataEnd {
		return int(r), 0, errno
	}
	h := (*unix.Cmsghdr)(control)
	aux := (*unix.TpacketAuxdata)(unsafe.Add(control, auxdataAt))
	if h.Level == unix.SOL_PACKET && h.Type == unix.PACKET_AUXDATA && aux.Status&unix.TP_STATUS_VLAN_VALID != 0 {
		tag = unix.ETH_P_8021Q<<16 | uint32(aux.Vlan_tci)
		if aux.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			tag = uint32(aux.Vlan_tpid)<<16 | uint32(aux.Vlan_tci)
		}
	}
	return int(r), tag, 0
}

// insertTag inserts the tag into f again. f's data ends at the end of b, and b has room for the tag
// in front of it.
func insertTag(f *link.Frame, b []byte, tag uint32) {
	const addresses = 12
	copy(b, f.Data[:addresses])
	binary.BigEndian.PutUint32(b[addresses:], tag)
	f.SetTagged(b)
}
