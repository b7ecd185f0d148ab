//go:build !linux

package kernel

import "syscall"

// yielder does nothing on systems other than Linux: see yield_linux.go.
type yielder struct{}

func newYielder() *yielder           { return nil }
func (*yielder) add(syscall.RawConn) {}
func (*yielder) removed()            {}
func (*yielder) emptyPoll()          {}
func (*yielder) streamRan()          {}
func (*yielder) close()              {}
