//go:build unix

package query

import (
	"errors"
	"syscall"
)

// refused reports whether no process listens on a socket any more.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
