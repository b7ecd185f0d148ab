//go:build unix

package node

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile makes this process the only one of the machine that uses a key. Of two nodes with one
// key, the peers would only reach the one that they heard last.
func lockFile(file string) (unlock func() error, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("%s: another process uses this key: each needs a key of its own (softrnic key makes one)", file)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}
