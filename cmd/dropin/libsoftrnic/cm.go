//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/handle"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// cmChannel is an event channel with an eventfd that counts its events. C takes and acknowledges an
// event in one call, as with events of completion channels.
type cmChannel struct {
	*rdmacm.EventChannel
	fd eventfd

	taking sync.Mutex // held while an event is taken, until its ID's context is set
}

// cmID is an ID of C. It is the context of the ID of rdmacm.
type cmID struct {
	*rdmacm.ID
	// Held while ID is replaced, and while a thread that is not in a call with the ID reads it.
	replacing  sync.Mutex
	cookie     uint64
	transports []verbs.Transport // that the ID may use
	reported   atomic.Uint32     // events taken by C
	options    bool              // an option was set
	family     bool              // of which one is that for a family
	listening  bool
	ch         *rdmacm.EventChannel // the program's, while ID is a reused listener: see bind
}

// called is with for a call of the program that a rule of package fault may make fail. The IDs are
// in exempt channels, because the engine makes other calls with them than the program.
func called(h C.uint32_t, name string, f func(*cmID) error) C.int {
	return with(&cmIDs, h, func(s *cmID) error {
		if err := s.fault(name); err != nil {
			return err
		}
		return f(s)
	})
}

// fault returns the error with which a call of the program fails on purpose, or nil.
func (s *cmID) fault(name string) error {
	if d := s.Device(); d != nil {
		return verbs.InjectedFault(name, d)
	}
	return verbs.InjectedFault(name, s.Channel().Devices()...)
}

// faultNames are the calls of which only the front knows.
var faultNames = [...]string{C.SR_CM_CREATE_QP: "rdma_create_qp", C.SR_CM_CREATE_SRQ: "rdma_create_srq"}

//export srCMFault
func srCMFault(h C.uint32_t, call C.int) C.int {
	if call < 0 || int(call) >= len(faultNames) {
		return invalid
	}
	return called(h, faultNames[call], func(*cmID) error { return nil })
}

// background is the context of calls that wait only for other threads of the program.
var background = context.Background()

var (
	cmChannels = handle.Table[cmChannel]{Missing: syscall.EINVAL}
	cmIDs      = handle.Table[cmID]{Missing: syscall.EINVAL}
)

//export srCMCreateChannel
func srCMCreateChannel(h *C.uint32_t, fdOut *C.int) C.int {
	if err := verbs.InjectedFault("rdma_create_event_channel", stacks.verbsDevices()...); err != nil {
		return errno(err)
	}
	v, err := rdmacm.CreateExemptChannel(stacks.verbsDevices()...)
	if err != nil {
		return errno(err)
	}
	fd, err := newEventfd()
	if err != nil {
		_ = v.Close()
		return errno(err)
	}
	v.OnEvent(func(n int) { fd.add(n) })
	*h, *fdOut = C.uint32_t(cmChannels.Add(&cmChannel{EventChannel: v, fd: fd})), C.int(fd)
	return 0
}

//export srCMDestroyChannel
func srCMDestroyChannel(h C.uint32_t) C.int {
	return errno(cmChannels.Remove(uint32(h), func(ch *cmChannel) error {
		for _, s := range cmIDs.All() {
			if id := s.current(); id.Channel() == ch.EventChannel {
				_ = id.Close() // its handle remains until C destroys the ID
			}
		}
		if err := ch.Close(); err != nil {
			return err
		}
		ch.OnEvent(nil)
		return ch.fd.close()
	}))
}

//export srCMCreateID
func srCMCreateID(ch C.uint32_t, cookie C.uint64_t, space C.int, h *C.uint32_t) C.int {
	c := cmChannels.Get(uint32(ch))
	if c == nil || space < 0 || space > 0xffff {
		return invalid
	}
	if err := verbs.InjectedFault("rdma_create_id", c.Devices()...); err != nil {
		return errno(err)
	}
	s := &cmID{cookie: uint64(cookie), transports: stacks.cmTransports(rdmacm.PortSpace(space))}
	var err error
	if s.ID, err = c.CreateID(rdmacm.PortSpace(space), s); err != nil {
		return errno(err)
	}
	if len(s.transports) > 0 {
		if err := s.SetTransports(s.transports...); err != nil {
			_ = s.Close()
			return errno(err)
		}
	}
	*h = C.uint32_t(cmIDs.Add(s))
	return 0
}

// cmTransports returns the wire protocols of a port space for which there is a device.
func (s *state) cmTransports(space rdmacm.PortSpace) (list []verbs.Transport) {
	for _, t := range s.cfg.Transports {
		there := slices.ContainsFunc(s.devices, func(d *device) bool { return d.transport == t })
		if there && (t == verbs.RoCEv2 || space == rdmacm.TCP) {
			list = append(list, t)
		}
	}
	if space != rdmacm.TCP && len(list) == 0 && slices.ContainsFunc(s.devices,
		func(d *device) bool { return d.transport == verbs.RoCEv2 }) {
		list = []verbs.Transport{verbs.RoCEv2}
	}
	return list
}

//export srCMDestroyID
func srCMDestroyID(h C.uint32_t, events *C.uint32_t) C.int {
	return errno(cmIDs.Remove(uint32(h), func(s *cmID) error {
		if err := s.fault("rdma_destroy_id"); err != nil {
			return err
		}
		from := s.current().Channel()
		if !retained.retain(s) {
			stacks.logError(s.Close()) // the ID is destroyed nevertheless
		}
		from.WaitCallbacks() // from now on, the descriptor does not count the ID's events
		*events = C.uint32_t(s.reported.Load())
		return nil
	}))
}

//export srCMMigrateID
func srCMMigrateID(h, ch C.uint32_t, events *C.uint32_t) C.int {
	s, to := cmIDs.Get(uint32(h)), cmChannels.Get(uint32(ch))
	if s == nil || to == nil {
		return invalid
	}
	if err := s.fault("rdma_migrate_id"); err != nil {
		return errno(err)
	}
	if from := s.current().Channel(); s.reused() {
		s.ch = to.EventChannel // Listen moves the ID there
	} else if err := s.Migrate(background, to.EventChannel); err != nil {
		return errno(err)
	} else {
		from.WaitCallbacks()
		to.WaitCallbacks()
	}
	*events = C.uint32_t(s.reported.Load())
	return 0
}

//export srCMQueryID
func srCMQueryID(h C.uint32_t, info *C.struct_sr_cm_id) C.int {
	return with(&cmIDs, h, func(s *cmID) error {
		r := s.Route()
		*info = C.struct_sr_cm_id{dev: C.int(s.device()), port: C.uint8_t(r.PortNum), qp_type: C.uint32_t(s.QPType())}
		setSockaddr(&info.src, s.LocalAddr())
		setSockaddr(&info.dst, s.PeerAddr())
		if s.PeerAddr().IsValid() && r.Src.IsValid() && r.Dst.IsValid() {
			info.routed = 1
			setGID(&info.sgid, verbs.GIDFromAddr(r.Src))
			setGID(&info.dgid, verbs.GIDFromAddr(r.Dst))
			info.mtu, info.traffic_class, info.sl = C.uint8_t(r.MTU), C.uint8_t(r.TOS), C.uint8_t(r.SL)
		}
		return nil
	})
}

// device returns the number in C's list of the device that an ID is bound to, or -1.
func (s *cmID) device() int {
	dev, t := s.Device(), s.Transport()
	return slices.IndexFunc(stacks.devices, func(d *device) bool { return d.dev == dev && d.transport == t })
}

//export srCMSetOption
func srCMSetOption(h C.uint32_t, option, value C.int) C.int {
	s := cmIDs.Get(uint32(h))
	if s == nil {
		return invalid
	}
	if err := s.fault("rdma_set_option"); err != nil {
		return errno(err)
	}
	s.options = true
	switch option {
	case C.SR_CM_TOS:
		return errno(s.SetTOS(uint8(value)))
	case C.SR_CM_REUSEADDR:
		return errno(s.SetReuseAddr(value != 0))
	case C.SR_CM_AFONLY:
		s.family = true
		return errno(s.SetAFOnly(value != 0))
	case C.SR_CM_ACK_TIMEOUT:
		if err := s.unreuse(); err != nil { // a listener has none
			return errno(err)
		}
		return errno(s.SetAckTimeout(uint8(value)))
	}
	return C.int(syscall.ENOSYS)
}

// bindV6Only reports whether the machine limits sockets at [::] to IPv6, and so Linux' rdma_cm its
// IDs.
func bindV6Only() bool {
	b, _ := os.ReadFile("/proc/sys/net/ipv6/bindv6only") // absent: no IPv6
	return len(b) > 0 && b[0] == '1'
}

//export srCMBind
func srCMBind(h C.uint32_t, addr *C.struct_sr_cm_addr) C.int {
	return called(h, "rdma_bind_addr", func(s *cmID) error {
		a, err := sockaddr(addr)
		if err != nil {
			return err
		}
		if len(s.transports) == 0 {
			return syscall.ENODEV
		}
		a = stacks.replaceLoopback(a)
		if !s.family && a.Addr().Is6() && bindV6Only() {
			if err := s.SetAFOnly(true); err != nil {
				return err
			}
		}
		if err := s.bind(a); err != nil {
			return err
		}
		if a.Addr().IsUnspecified() || s.reused() {
			return nil
		}
		return s.SetTransports(s.transports[0]) // the device is known, so only its protocol is used
	})
}

//export srCMResolveAddr
func srCMResolveAddr(h C.uint32_t, srcAddr, dstAddr *C.struct_sr_cm_addr, ms C.int) C.int {
	return called(h, "rdma_resolve_addr", func(s *cmID) error {
		src, err := sockaddr(srcAddr)
		if err != nil {
			return err
		}
		dst, err := sockaddr(dstAddr)
		if err != nil {
			return err
		}
		if len(s.transports) == 0 {
			return syscall.ENODEV
		}
		if err := s.unreuse(); err != nil {
			return err
		}
		if src = stacks.replaceLoopback(src); s.LocalAddr().IsValid() {
			src = noAddr // as in the kernel, a bound ID keeps its address
		}
		return s.ResolveAddr(src, stacks.replaceLoopbackOrAny(dst), time.Duration(ms)*time.Millisecond)
	})
}

//export srCMResolveRoute
func srCMResolveRoute(h C.uint32_t) C.int {
	return called(h, "rdma_resolve_route", (*cmID).ResolveRoute)
}

// minBacklog is the smallest backlog. In the kernel, a request counts until rdma_get_cm_event has
// returned it. In rdmacm, it counts until it is accepted. A program that listens with a backlog of
// 1 may have several requests that it has not accepted yet.
const minBacklog = 128

// srCMListen listens over all wire protocols. iWARP uses TCP's ports. A TCP socket of this or
// another program may have the port of a listener for all addresses. In this case iWARP is left
// out, because some programs serve the same protocol over TCP.
//
//export srCMListen
func srCMListen(h C.uint32_t, backlog C.int) C.int {
	return called(h, "rdma_listen", func(s *cmID) error {
		if len(s.transports) == 0 {
			return syscall.ENODEV
		}
		n := max(int(backlog), minBacklog)
		err := s.listen(n)
		if errors.Is(err, syscall.EADDRINUSE) && s.Device() == nil && len(s.transports) > 1 {
			if err := s.SetTransports(verbs.RoCEv2); err != nil {
				return err
			}
			err = s.listen(n)
		}
		if err == nil {
			s.listening = true
			stacks.log.Load().Debug("rdma_cm listens", "space", s.PortSpace(), "addr", s.LocalAddr())
		}
		return err
	})
}

//export srCMJoin
func srCMJoin(h C.uint32_t, group *C.struct_sr_cm_addr, sendOnly C.int) C.int {
	return called(h, "rdma_join_multicast", func(s *cmID) error {
		a, err := sockaddr(group)
		if err != nil {
			return err
		}
		if err := s.unreuse(); err != nil {
			return err
		}
		if sendOnly != 0 {
			return s.JoinMulticastSendOnly(a.Addr())
		}
		return s.JoinMulticast(a.Addr())
	})
}

//export srCMLeave
func srCMLeave(h C.uint32_t, group *C.struct_sr_cm_addr) C.int {
	return called(h, "rdma_leave_multicast", func(s *cmID) error {
		a, err := sockaddr(group)
		if err != nil {
			return err
		}
		return s.LeaveMulticast(a.Addr())
	})
}
