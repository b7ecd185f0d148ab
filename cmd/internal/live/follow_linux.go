package live

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The time between two updates: minInterval while counters change, and up to maxInterval later.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Second
)

// Follow updates the files until stop is called, which makes a last update and leaves the
// directory.
func (d *Directory) Follow() (stop func()) {
	w := &writer{dir: d.Path, patience: lockPatience}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		interval := minInterval
		for {
			select {
			case <-end:
				return
			case <-time.After(interval):
			}
			interval = min(2*interval, maxInterval)
			if now, err := Counters(d.dev); err == nil && w.update(now) {
				interval = minInterval
			}
		}
	}()
	return func() {
		close(end)
		<-ended
		w.patience = lastPatience
		if now, err := Counters(d.dev); err == nil {
			w.update(now)
		}
		d.Leave()
	}
}

// writer adds a process's counters to the files.
type writer struct {
	dir      string
	last     map[string]uint64 // what the files have of this process
	patience time.Duration     // bounds the wait for another process
}

// update adds the changes since the last update to the files. It reports whether there were any. A
// counter that is less than before does not change its file until it is more.
func (w *writer) update(now map[string]uint64) (changed bool) {
	for name, v := range now {
		changed = changed || v > w.last[name]
	}
	if !changed {
		return false
	}
	f, err := w.lock()
	if err != nil {
		return true // later
	}
	defer f.Close()
	if w.last == nil {
		w.last = map[string]uint64{}
	}
	for name, v := range now {
		if v > w.last[name] && add(filepath.Join(w.dir, name), v-w.last[name]) == nil {
			w.last[name] = v
		}
	}
	return true
}

// The wait for another process, which may have been stopped, is bounded: while the program runs,
// and when it ends.
const (
	lockPatience = 50 * time.Millisecond
	lastPatience = time.Second
)

// lock locks the files until the result is closed.
func (w *writer) lock() (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(w.dir, lockFile), os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(w.patience); ; time.Sleep(time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(until) {
			return nil, errors.Join(err, f.Close())
		}
	}
}

// add adds to the number in a file. It replaces the file, so that a program that reads it in parts
// sees one number. A program sees later numbers only if it opens the file again. The caller holds
// the lock.
func add(name string, n uint64) error {
	f, err := os.OpenFile(name, os.O_RDONLY|noWait, 0)
	if err != nil {
		return err
	}
	var text [32]byte
	length, err := f.Read(text[:])
	_ = f.Close()
	if length == 0 {
		return err
	}
	line, _, _ := bytes.Cut(text[:length], []byte{'\n'})
	old, err := strconv.ParseUint(string(line), 10, 64)
	if err != nil {
		return err
	}
	// The directory of the counters itself has only the entries that it has in sysfs.
	next := filepath.Join(filepath.Dir(filepath.Dir(name)), nextFile)
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := write(next, old+n); err != nil {
		return err
	}
	return os.Rename(next, name)
}

// write writes a number to a new file, which nobody else writes: it may be that of many counters.
func write(name string, n uint64) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444)
	if err != nil {
		return err
	}
	_, err = f.Write(append(strconv.AppendUint(nil, n, 10), '\n'))
	return errors.Join(err, f.Close())
}
