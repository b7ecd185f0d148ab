package live

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/link/userdir"
	"github.com/softrnic/softrnic/verbs"
)

// The directories of counters, as below a port in sysfs.
const (
	PortDir = "counters"
	HWDir   = "hw_counters"
)

// cmDirs are the directories of counters of CM messages. A counter's name begins with its
// directory.
var cmDirs = []string{"cm_tx_msgs", "cm_tx_retries", "cm_rx_msgs", "cm_rx_duplicates"}

// Dirs returns the directories of the counters of one of a rail's two devices. Both have those of
// the port.
func Dirs(iwarp bool) []string {
	if iwarp {
		return []string{PortDir, HWDir}
	}
	return append([]string{PortDir, HWDir}, cmDirs...)
}

// lockFile is locked while a process changes the files.
const lockFile = "lock"

// nextFile is what a process writes before it takes a counter's place.
const nextFile = "next"

// noWait are the flags to open files. With them, it fails for a symbolic link, and does not wait
// for the other end of a FIFO.
const noWait = unix.O_NOFOLLOW | unix.O_NONBLOCK

// Directory is the directory of a device.
type Directory struct {
	Path string
	dev  *verbs.Device
	open *os.File // with a shared lock, which keeps others from removing it
}

// parent returns the directory of all devices.
func parent() string { return filepath.Join(userdir.Default(), "counters") }

// path returns the path of a rail's directory. Processes have the same one if they open a rail with
// the same link, addresses and device names in the same network namespace.
func path(r *dropin.Rail, dev *verbs.Device) (string, error) {
	namespace, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %+v %v %v %s,%s", namespace, r.Flags.Link, r.Flags.Addr,
		dev.QueryDevice().NodeGUID, r.RoCE, r.IWARP))
	return filepath.Join(parent(), fmt.Sprintf("%.16x", sum[:])), nil
}

// Create opens the directory of a rail, whose device is dev. If no process has it open, its
// counters begin at 0, or remain if keep is set.
func Create(r *dropin.Rail, dev *verbs.Device, keep bool) (*Directory, error) {
	dir, err := path(r, dev)
	if err != nil {
		return nil, err
	}
	if err := userdir.Make(parent()); err != nil {
		return nil, err
	}
	if !keep {
		removeLeft()
	}
	for {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		d, err := open(dir, dev, unix.LOCK_SH)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process has removed it
		}
		if err != nil {
			return nil, err
		}
		if err := d.fill(); err != nil {
			d.Close()
			return nil, err
		}
		return d, nil
	}
}

// Open opens the directory of a rail if it exists. Otherwise the error is fs.ErrNotExist. It does
// not wait for other processes, and fails if another user may have created the directory.
func Open(r *dropin.Rail, dev *verbs.Device) (*Directory, error) {
	dir, err := path(r, dev)
	if err != nil {
		return nil, err
	}
	if err := userdir.Check(parent()); err != nil {
		return nil, err
	}
	d, err := open(dir, dev, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) { // the last process is about to remove it
		err = fs.ErrNotExist
	}
	return d, err
}

// open opens a directory with a lock.
func open(dir string, dev *verbs.Device, lock int) (*Directory, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), lock)
	if err == nil {
		err = same(f, dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Directory{dir, dev, f}, nil
}

// same returns fs.ErrNotExist if the path no longer is that of the open directory.
func same(f *os.File, dir string) error {
	of, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(dir)
	if err == nil && !os.SameFile(of, there) {
		err = fs.ErrNotExist
	}
	return err
}

// fill creates the files that do not exist. Other processes may do so at the same time, and wait
// for each other, so that none finds a file that is still empty.
func (d *Directory) fill() (err error) {
	files, err := Counters(d.dev)
	if err != nil {
		return err
	}
	dirs := map[string]*os.File{}
	defer func() {
		for _, f := range dirs {
			_ = f.Close()
		}
	}()
	for _, sub := range Dirs(false) {
		path := filepath.Join(d.Path, sub)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|noWait, 0)
		if err != nil {
			return err
		}
		dirs[sub] = f
	}
	lock, err := os.OpenFile(filepath.Join(d.Path, lockFile), os.O_CREATE|os.O_RDWR|noWait, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	has := map[string]bool{}
	for sub, f := range dirs {
		names, err := f.Readdirnames(-1)
		if err != nil {
			return err
		}
		for _, name := range names {
			has[sub+"/"+name] = true
		}
	}
	maps.DeleteFunc(files, func(name string, _ uint64) bool { return has[name] })
	if len(files) == 0 {
		return nil // a rail's second process, which then needs no space
	}
	// A counter is replaced and not changed, so that all that are 0 can be one file.
	zero := filepath.Join(d.Path, nextFile)
	if err := os.Remove(zero); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a killed process
		return err
	}
	defer func() {
		if gone := os.Remove(zero); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}()
	if err := write(zero, 0); err != nil {
		return err
	}
	for name := range files {
		sub, base := filepath.Split(name)
		err := unix.Linkat(int(d.open.Fd()), nextFile, int(dirs[filepath.Clean(sub)].Fd()), base, 0)
		if err != nil && !errors.Is(err, fs.ErrExist) { // the file system has no links, or no more of one file
			err = write(filepath.Join(d.Path, name), 0)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// Counters returns the counters of a device by the files of its directory.
func Counters(dev *verbs.Device) (map[string]uint64, error) {
	port, err := dev.PortCounters(1)
	if err != nil {
		return nil, err
	}
	all, err := dev.HWCounters()
	if err != nil {
		return nil, err
	}
	files := map[string]uint64{}
	for name, v := range port {
		files[PortDir+"/"+name] = v
	}
	for name, v := range all {
		at := HWDir + "/" + name
		for _, dir := range cmDirs {
			if of, ok := strings.CutPrefix(name, dir+"_"); ok {
				at = dir + "/" + of
			}
		}
		files[at] = v
	}
	return files, nil
}

// Close closes the directory, and removes it if no other process has it open.
func (d *Directory) Close() {
	if unix.Flock(int(d.open.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && same(d.open, d.Path) == nil {
		_ = os.RemoveAll(d.Path)
	}
	_ = d.open.Close()
}

// Leave closes the directory, and it remains.
func (d *Directory) Leave() { _ = d.open.Close() }

// removeLeft removes directories that killed processes have left.
func removeLeft() {
	entries, err := os.ReadDir(parent())
	if err != nil {
		return
	}
	for _, e := range entries {
		if d, err := open(filepath.Join(parent(), e.Name()), nil, unix.LOCK_SH|unix.LOCK_NB); err == nil {
			d.Close()
		}
	}
}
