//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"errors"
	"syscall"
	"unsafe"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// rsockMap is memory that the program has mapped with riomap.
type rsockMap struct {
	addr    unsafe.Pointer
	length  C.size_t
	mapping *rsocket.Mapping
}

//export srRsMap
func srRsMap(h C.uint32_t, addr unsafe.Pointer, length C.size_t, offset C.int64_t, at *C.int64_t) C.int {
	return with(&rsocks, h, func(s *rsock) error {
		c, err := s.connection()
		if err != nil || s.dgram {
			return syscall.EINVAL
		}
		b, err := bytesAt("map", addr, length)
		if err != nil {
			return err
		}
		m, err := c.Map(b, int64(offset))
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.maps = append(s.maps, rsockMap{addr, length, m})
		s.mu.Unlock()
		*at = C.int64_t(m.Offset())
		return nil
	})
}

//export srRsUnmap
func srRsUnmap(h C.uint32_t, addr unsafe.Pointer, length C.size_t) C.int {
	return locked(h, func(s *rsock) error {
		for i, m := range s.maps {
			if m.addr == addr && m.length == length {
				s.maps = append(s.maps[:i], s.maps[i+1:]...)
				return m.mapping.Close()
			}
		}
		return syscall.EINVAL
	})
}

//export srRsWriteAt
func srRsWriteAt(h C.uint32_t, buf unsafe.Pointer, n C.size_t, offset C.int64_t, done *C.size_t) C.int {
	return transfer(h, buf, n, done, func(c *rsocket.Conn, b []byte) (int, error) {
		k, err := c.TryWriteAt(b, int64(offset))
		if k > 0 && errors.Is(err, syscall.EINVAL) {
			err = nil // partial write up to the end of the mapping
		}
		return k, err
	})
}
