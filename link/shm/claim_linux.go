package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A claim is a file in the segment's directory, named after what is claimed, with a lock that ends with its process, however
// that ends. In the file is the process's number, for others to name in their errors.
const claimPrefix = ".claim-"

// socketPrefix is that of the name which a socket has before others may connect to it. The rest is the Ethernet address, which
// its process has claimed.
const socketPrefix = ".socket-"

// looks is how many milliseconds somebody may look at a claim. Who does for longer was stopped, or is an enemy.
const looks = 200

// claim claims a name; the error wraps ErrClaimed if another has it.
func claim(dir, name string) (*os.File, error) {
	if name == "" || strings.ContainsAny(name, "/\x00") {
		return nil, fmt.Errorf("%q cannot be claimed: give a name without '/'", name)
	}
	path := filepath.Join(dir, claimPrefix+name)
	for try := 0; ; try++ {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			if try < looks && unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil { // it is only being looked at
				_ = f.Close()
				time.Sleep(time.Millisecond)
				continue
			}
			pid, _ := io.ReadAll(io.LimitReader(f, 20))
			_ = f.Close()
			return nil, fmt.Errorf("%w: %s, by process %s", ErrClaimed, name, pid)
		}
		var there bool
		if err == nil {
			there, err = isAt(f, path)
		}
		if err == nil && there {
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
		// Somebody has removed the file before it was locked: of a process that died, or ended. Another try.
	}
}

// isAt reports whether a file is what is at a path.
func isAt(f *os.File, path string) (bool, error) {
	own, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(own, there), err
}

// isClaimed reports whether somebody holds the claim of a name.
func isClaimed(dir, name string) bool {
	f, err := os.Open(filepath.Join(dir, claimPrefix+name))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// giveUp ends claims.
func giveUp(claims []*os.File) (err error) {
	for _, f := range claims {
		err = errors.Join(err, os.Remove(f.Name()), f.Close()) // in this order: what is at the path is locked
	}
	return err
}

// sweepClaim removes a claim of a process that has died, and the socket that goes with it, if it died before that had its
// name. It only shares the lock, so that whoever claims the name at the same time can tell; and only one process at a time
// removes files, so that none is removed but the one that was looked at.
func sweepClaim(dir, path string) {
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
	if there, err := isAt(f, path); there && err == nil {
		_ = os.Remove(filepath.Join(dir, socketPrefix+strings.TrimPrefix(filepath.Base(path), claimPrefix)))
		_ = os.Remove(path)
	}
}

// claim makes the claims of the config, and so settles the MAC.
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
	for c.picked = 0; c.pick != nil; c.picked++ {
		name, mac, ok := c.pick(c.picked)
		if !ok {
			return fmt.Errorf("%w: all %d", ErrClaimed, c.picked)
		}
		err := add(name)
		if err == nil {
			c.mac = mac
			break
		}
		if !errors.Is(err, ErrClaimed) {
			return err
		}
	}
	return add(c.mac.String())
}
