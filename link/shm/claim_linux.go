package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A claim is a file in the segment's directory, with the claimed name in its own name. The process
// holds a lock on it, which ends with the process even if that is killed. The file contains the
// process ID, for error messages of other processes.
const claimPrefix = ".claim-"

// socketPrefix begins the name of a socket that is not yet ready for connections. The rest of the
// name is the Ethernet address that the socket's process has claimed.
const socketPrefix = ".socket-"

// maxClaimRetries is the number of retries of claim, one per millisecond, while a process holds the
// lock shared to inspect the claim. A process that holds it longer is stopped or malicious.
const maxClaimRetries = 200

// claim claims a name. The error wraps ErrClaimed if another process has claimed it.
func claim(dir, name string) (*os.File, error) {
	if name == "" || strings.ContainsAny(name, "/\x00") {
		return nil, fmt.Errorf("cannot claim %q: the name must not contain '/'", name)
	}
	path := filepath.Join(dir, claimPrefix+name)
	for try := 0; ; try++ {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			// Another process only inspects the claim.
			if try < maxClaimRetries && unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
				_ = f.Close()
				time.Sleep(time.Millisecond)
				continue
			}
			pid, _ := io.ReadAll(io.LimitReader(f, 20))
			_ = f.Close()
			return nil, fmt.Errorf("%w: %s, process %s", ErrClaimed, name, pid)
		}
		var same bool
		if err == nil {
			same, err = isFileAt(f, path)
		}
		if err == nil && same {
			err = f.Truncate(0)
			if err == nil {
				_, err = fmt.Fprint(f, os.Getpid())
			}
			if err == nil {
				return f, nil
			}
		}
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("claim %s: %w", name, err)
		}
		// Another process removed the file before it was locked, because its owner had died or closed it.
		// Try again.
	}
}

// isFileAt reports whether f is the file at path.
func isFileAt(f *os.File, path string) (bool, error) {
	own, err := f.Stat()
	if err != nil {
		return false, err
	}
	atPath, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(own, atPath), err
}

// isClaimed reports whether a process holds the claim of a name.
func isClaimed(dir, name string) bool {
	f, err := os.Open(filepath.Join(dir, claimPrefix+name))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// releaseClaims releases claims, the last one first: who gets the name of an address also gets the
// address, which was claimed after it.
func releaseClaims(claims []*os.File) (err error) {
	for _, f := range slices.Backward(claims) {
		// The file is removed first, while the lock is still held.
		err = errors.Join(err, os.Remove(f.Name()), f.Close())
	}
	return err
}

// removeStaleClaim removes the claim of a process that has died, and its socket if that has not
// been renamed yet. It takes the file's lock shared. A process that claims the name at the same
// time therefore retries. Only one process at a time holds the directory's lock, so only the
// inspected files are removed.
func removeStaleClaim(dir, path string) {
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer d.Close()
	if unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
		return
	}
	if there, err := isFileAt(f, path); there && err == nil {
		_ = os.Remove(filepath.Join(dir, socketPrefix+strings.TrimPrefix(filepath.Base(path), claimPrefix)))
		_ = os.Remove(path)
	}
}

// claim makes the claims of the config. They determine the MAC.
func (s *segment) claim() error {
	c := s.config
	add := func(name string) error {
		f, err := claim(c.dir, name)
		if err == nil {
			s.claims = append(s.claims, f)
		}
		return err
	}
	for _, name := range c.claims {
		if err := add(name); err != nil {
			return err
		}
	}
	if c.pick == nil {
		return add(c.mac.String())
	}
	var refused error // an entry's address
	for c.picked = 0; ; c.picked++ {
		name, mac, ok := c.pick(c.picked)
		switch {
		case !ok && refused != nil:
			return refused
		case !ok:
			return fmt.Errorf("%w: all %d", ErrClaimed, c.picked)
		}
		err := add(name)
		if err == nil {
			if err = add(mac.String()); err == nil {
				c.mac = mac
				return nil
			}
			// The process that had both may have died, and lost its locks in any order.
			refused = err
			last := len(s.claims) - 1
			if err := releaseClaims(s.claims[last:]); err != nil {
				return err
			}
			s.claims = s.claims[:last]
		}
		if !errors.Is(err, ErrClaimed) {
			return err
		}
	}
}
