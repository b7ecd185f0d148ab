//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"math"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// rsockOptions are the options of an rsocket that rsocket.Config does not have, or has in another
// form.
type rsockOptions struct {
	reuse     bool
	keepalive bool
	idle      int  // TCP_KEEPIDLE in s; 0: defaultIdle
	linger    int  // SO_LINGER in s; -1: off
	set       bool // linger is set
	failed    bool // SO_ERROR has returned the connection's error
}

// defaultIdle is Linux's default of TCP_KEEPIDLE, in s.
const defaultIdle = 7200

// applyOptions sets the options of a connection that may change while it exists. mu is held.
func (s *rsock) applyOptions() error {
	s.cfg.KeepAlive = 0
	if s.opts.keepalive {
		s.cfg.KeepAlive = time.Duration(s.keepIdle()) * time.Second
	}
	s.cfg.Linger = 0
	if s.opts.set && s.opts.linger >= 0 {
		s.cfg.Linger = max(time.Duration(s.opts.linger)*time.Second, time.Nanosecond)
	}
	if s.conn == nil {
		return nil
	}
	if err := s.conn.SetLinger(s.cfg.WithDefaults().Linger); err != nil {
		return err
	}
	return s.conn.SetKeepAlive(s.cfg.KeepAlive)
}

func (s *rsock) keepIdle() int {
	if s.opts.idle == 0 {
		return defaultIdle
	}
	return s.opts.idle
}

// sizeOption returns the size of a configuration that an option is about, or nil.
func sizeOption(c *rsocket.Config, option C.int) *int {
	switch option {
	case C.SR_RS_SNDBUF:
		return &c.SendBuffer
	case C.SR_RS_RCVBUF:
		return &c.RecvBuffer
	case C.SR_RS_SQSIZE:
		return &c.SQSize
	case C.SR_RS_RQSIZE:
		return &c.RQSize
	case C.SR_RS_INLINE:
		return &c.Inline
	case C.SR_RS_IOMAPSIZE:
		return &c.Iomaps
	}
	return nil
}

//export srRsSetOption
func srRsSetOption(h C.uint32_t, option, value C.int) C.int {
	return locked(h, func(s *rsock) error {
		v := int(value)
		// The sizes apply to new connections. Those of a listener apply to connections that it accepts
		// later.
		of := sizeOption(&s.cfg, option)
		if of != nil || option == C.SR_RS_V6ONLY {
			buffer := option == C.SR_RS_SNDBUF || option == C.SR_RS_RCVBUF
			switch {
			case v >= 0 && buffer && s.state != rsockNew && s.state != rsockListening:
				return nil // as in librdmacm, the buffer does not change
			case v < 0, s.state != rsockNew && (s.state != rsockListening || of == nil):
				return syscall.EINVAL
			case of == nil:
				s.cfg.AFOnly = v != 0
			case option == C.SR_RS_INLINE && v == 0:
				*of = -1
			default:
				*of = v
				s.cfg = clamped(s.cfg)
			}
			for _, l := range s.listeners {
				if err := l.SetConfig(&s.cfg); err != nil {
					return err
				}
			}
			return nil
		}
		switch option {
		case C.SR_RS_REUSEADDR:
			s.opts.reuse = v != 0
		case C.SR_RS_KEEPALIVE:
			s.opts.keepalive = v != 0
		case C.SR_RS_KEEPIDLE:
			if v < 1 || v > 32767 {
				return syscall.EINVAL
			}
			s.opts.idle = v
		case C.SR_RS_LINGER:
			s.opts.linger, s.opts.set = v, true
		default:
			return syscall.ENOPROTOOPT
		}
		return s.applyOptions()
	})
}

// clamped returns a configuration with sizes as librdmacm accepts them. A size that is out of
// bounds becomes the nearest that package rsocket accepts. 0 stays, for the default.
func clamped(c rsocket.Config) rsocket.Config {
	clamp := func(n *int, least, most int) {
		if *n != 0 {
			*n = min(max(*n, least), most)
		}
	}
	clamp(&c.SQSize, 16, 0xfffe)
	clamp(&c.RQSize, 16, 0xfffe)
	for _, n := range []*int{&c.SendBuffer, &c.RecvBuffer} {
		clamp(n, 4<<10, 1<<29)
		*n &^= 15
	}
	clamp(&c.Iomaps, 0, 127<<8)
	if c.Iomaps > 128 {
		c.Iomaps = (c.Iomaps + 255) &^ 255
	}
	return c
}

//export srRsGetOption
func srRsGetOption(h C.uint32_t, option C.int, value *C.int) C.int {
	return locked(h, func(s *rsock) error {
		cfg := s.cfg.WithDefaults()
		if size := sizeOption(&cfg, option); size != nil {
			*value = C.int(*size)
			return nil
		}
		v := 0
		switch option {
		case C.SR_RS_V6ONLY:
			v = flag[int](cfg.AFOnly)
		case C.SR_RS_REUSEADDR:
			v = flag[int](s.opts.reuse)
		case C.SR_RS_KEEPALIVE:
			v = flag[int](s.opts.keepalive)
		case C.SR_RS_KEEPIDLE:
			v = s.keepIdle()
		case C.SR_RS_LINGER:
			if v = -1; s.opts.set {
				v = s.opts.linger
			}
		case C.SR_RS_ACCEPTCONN:
			v = flag[int](s.state == rsockListening)
		case C.SR_RS_ERROR:
			v = s.pendingError()
		case C.SR_RS_MAXSEG:
			v = s.maxSegment()
		case C.SR_RS_STATE:
			v = s.tcpState()
		case C.SR_RS_RETRANSMITTED:
			v = s.retransmitted()
		default:
			return syscall.ENOPROTOOPT
		}
		*value = C.int(v)
		return nil
	})
}

// States of TCP, as in struct tcp_info.
const (
	tcpEstablished = 1
	tcpSynSent     = 2
	tcpClose       = 7
	tcpListen      = 10
)

// tcpState returns the state of TCP that is closest to the rsocket's. mu is held.
func (s *rsock) tcpState() int {
	switch {
	case s.state == rsockConnecting:
		return tcpSynSent
	case s.state == rsockListening:
		return tcpListen
	case s.state == rsockConnected && s.conn.Ready()&(rsocket.HungUp|rsocket.Failed) == 0:
		return tcpEstablished
	}
	return tcpClose
}

// retransmitted returns the number of the QP's retransmissions: those after a timeout or a NAK
// (go-back-N), plus selectively retransmitted packets. mu is held.
func (s *rsock) retransmitted() int {
	if s.state != rsockConnected {
		return 0
	}
	stats, err := s.conn.QP().Stats()
	if err != nil {
		return 0 // the connection was closed meanwhile
	}
	return int(min(stats.Counters["completer_retry_err"]+stats.Counters["selective_repeats"], math.MaxInt32))
}

// pendingError returns SO_ERROR, an errno. mu is held.
func (s *rsock) pendingError() int {
	err := s.takeError()
	if s.state == rsockConnected && s.conn.Ready()&rsocket.Failed != 0 && !s.opts.failed {
		err, s.opts.failed = s.conn.Err(), true
	}
	if err == nil {
		return 0
	}
	return int(errnoQuietly(err))
}

// maxSegment returns TCP_MAXSEG: the path MTU of the connection in bytes. Without a connection it
// returns the smallest MTU. mu is held.
func (s *rsock) maxSegment() int {
	if s.state == rsockConnected {
		if attr, err := verbs.Attributes(s.conn.QP()); err == nil && attr.PathMTU.Bytes() > 0 {
			return attr.PathMTU.Bytes()
		}
	}
	return verbs.MTU256.Bytes()
}
