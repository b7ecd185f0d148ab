package target

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
)

// FileConfig has the options of OpenFile. The zero value and nil open an existing file for reading
// and writing.
type FileConfig struct {
	ReadOnly bool
	// Force opens what is in use, which is otherwise an error: a file that is locked (flock), as
	// OpenFile does until Close, or a block device that is mounted, or opened exclusively by another
	// File or program. Readers do not exclude each other from a file. Only Unix has locks, and only
	// Linux notices that a device is in use.
	Force bool
	// Size, unless 0, is the least size in bytes: a file that does not exist is created with it, and
	// a shorter one is extended. Files are sparse.
	Size int64
}

// File is a Backend in a file or a block device. Discard and Zero need Linux; elsewhere Discard
// does nothing.
//
// Several targets may have one File. If the system cannot write what hosts have written, Sync and
// Close fail from then on.
type File struct {
	f        *os.File
	readOnly bool
	device   int64 // size of a block device; 0 for a file

	syncing sync.Mutex // one at a time: the system tells only one of two that it has failed
	lost    error      // of the first Sync that has failed

	noTry   atomic.Bool // the file system does not say whether a read would block
	noPunch atomic.Bool // the file system has no holes
	noZero  atomic.Bool // the file system has no ranges of zeros
}

var (
	_ Backend   = (*File)(nil)
	_ Syncer    = (*File)(nil)
	_ Discarder = (*File)(nil)
	_ Zeroer    = (*File)(nil)
	_ TryReader = (*File)(nil)
	_ TryWriter = (*File)(nil)
)

// OpenFile opens a file or a block device. An error wraps [syscall.EBUSY] if that is in use.
func OpenFile(name string, cfg *FileConfig) (f *File, err error) {
	if cfg == nil {
		cfg = &FileConfig{}
	}
	op, mode := "open "+name, os.O_RDWR
	before, missing := os.Stat(name)
	isNew := errors.Is(missing, fs.ErrNotExist)
	switch {
	case cfg.Size < 0:
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "Size %d: must be 0 or more", cfg.Size)
	case cfg.ReadOnly:
		mode = os.O_RDONLY
	case cfg.Size > 0 && isNew:
		mode |= os.O_CREATE
	}
	if missing == nil && isDevice(before) && !cfg.Force {
		mode |= exclusive
	}
	file, err := os.OpenFile(name, mode, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	f = &File{f: file, readOnly: cfg.ReadOnly}
	size := info.Size()
	switch {
	case info.Mode().IsRegular():
		if err := lock(file, !cfg.ReadOnly); err != nil && !cfg.Force {
			return nil, err
		}
		if size < cfg.Size && !cfg.ReadOnly {
			if err := file.Truncate(cfg.Size); err != nil {
				return nil, err
			}
			size = cfg.Size
		}
		if isNew {
			if err := syncDir(filepath.Dir(name)); err != nil {
				return nil, err
			}
		}
	case isDevice(info):
		if f.device, err = file.Seek(0, io.SeekEnd); err != nil {
			return nil, err
		}
		size = f.device
	default:
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "it is neither a file nor a block device")
	}
	if size < max(cfg.Size, 1) {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "it has %d bytes: must be %d at least", size, max(cfg.Size, 1))
	}
	return f, nil
}

// isDevice reports whether info is of a block device.
func isDevice(info fs.FileInfo) bool {
	return info.Mode()&(fs.ModeDevice|fs.ModeCharDevice) == fs.ModeDevice
}

// syncDir makes the names in a directory durable. Windows cannot do so, and needs not.
func syncDir(name string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Size implements Backend. It is 0 if the file cannot be examined.
func (f *File) Size() int64 {
	if f.device != 0 {
		return f.device
	}
	info, err := f.f.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// ReadAt implements Backend.
func (f *File) ReadAt(p []byte, off int64) (int, error) { return f.f.ReadAt(p, off) }

// WriteAt implements Backend.
func (f *File) WriteAt(p []byte, off int64) (int, error) { return f.f.WriteAt(p, off) }

// TryWriteAt implements TryWriter. A write to the page cache rarely blocks for long, and a
// goroutine of its own would cost more. If it blocks, so does the queue: there is at most one such
// thread for each connection, and its host alone waits.
func (f *File) TryWriteAt(p []byte, off int64) (done bool, err error) {
	_, err = f.f.WriteAt(p, off)
	return true, err
}

// Sync implements Syncer. After it has failed, it fails with the same error until the file is
// opened again: see Syncer.
func (f *File) Sync() error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	if f.lost == nil {
		f.lost = f.f.Sync()
	}
	return f.lost
}

// Close makes writes durable and closes the file. An error says that some may be lost.
func (f *File) Close() error {
	var err error
	if !f.readOnly {
		err = f.Sync()
	}
	return errors.Join(err, f.f.Close())
}
