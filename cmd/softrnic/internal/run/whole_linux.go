package run

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// whole is a file that the program's libraries empty if they cannot write their trace or their
// counters. To empty a file takes no room on a disk.
type whole string

// newWhole creates the file. The program may become another user, so anyone who knows its name may
// empty it. Other users cannot find the name: it is random, in a directory that only its owner may
// list, and in an environment that only the program's user may read.
func newWhole() (w whole, remove func(), err error) {
	dir, remove, err := newTree(os.TempDir())
	if err != nil {
		return "", nil, err
	}
	w = whole(filepath.Join(dir, rand.Text()))
	if err := errors.Join(os.Chmod(dir, 0o711), os.WriteFile(string(w), []byte{'1'}, 0o666), os.Chmod(string(w), 0o666)); err != nil {
		remove()
		return "", nil, fmt.Errorf("a file that says whether the trace is whole: %w", err)
	}
	return w, remove, nil
}

// or returns the program's exit status, or an error if that is 0 and the file was emptied. The
// libraries have printed the reason.
func (w whole) or(status error) error {
	if status != nil {
		return status
	}
	switch info, err := os.Stat(string(w)); {
	case err != nil:
		return fmt.Errorf("whether the trace is whole: %w", err)
	case info.Size() == 0:
		return errors.New("the trace or the counters are not whole: see above")
	}
	return nil
}
