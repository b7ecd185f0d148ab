//go:build unix

package status

import (
	"errors"
	"syscall"

	"github.com/softrnic/softrnic/link/userdir"
)

func makeDirectory(dir string) error { return userdir.Make(dir) }

// refused reports whether no process listens on a socket any more.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
