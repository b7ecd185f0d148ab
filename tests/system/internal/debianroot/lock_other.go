//go:build !unix

package debianroot

import (
	"errors"
	"os"
)

// Ways to lock a file or directory.
const (
	shared    = 0
	exclusive = 1
	atOnce    = 2
)

var errLocked = errors.New("another process has locked it")

// lock fails: mmdebstrap runs on Linux only.
func lock(f *os.File, how int) error {
	return &os.PathError{Op: "lock", Path: f.Name(), Err: errors.ErrUnsupported}
}
