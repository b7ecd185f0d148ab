package target

import (
	"errors"
	"io"
	"os"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
)

// FileConfig has the options of OpenFile. The zero value and nil open an existing file for reading
// and writing.
type FileConfig struct {
	ReadOnly bool
	// Size, unless 0, is the least size in bytes: a file that does not exist is created with it, and
	// a shorter one is extended. Files are sparse.
	Size int64
}

// File is a Backend in a file or a block device. Discard and Zero need Linux; elsewhere Discard
// does nothing.
type File struct {
	f       *os.File
	device  int64       // size of a block device; 0 for a file
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

// OpenFile opens a file or a block device.
func OpenFile(name string, cfg *FileConfig) (f *File, err error) {
	if cfg == nil {
		cfg = &FileConfig{}
	}
	mode := os.O_RDWR
	switch {
	case cfg.Size < 0:
		return nil, verbs.Errorf(verbs.ErrInvalid, "open "+name, "Size %d: must be 0 or more", cfg.Size)
	case cfg.ReadOnly:
		mode = os.O_RDONLY
	case cfg.Size > 0:
		mode |= os.O_CREATE
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
	f = &File{f: file}
	size := info.Size()
	switch kind := info.Mode().Type(); {
	case kind.IsRegular():
		if size < cfg.Size && !cfg.ReadOnly {
			if err := file.Truncate(cfg.Size); err != nil {
				return nil, err
			}
			size = cfg.Size
		}
	case kind&os.ModeDevice != 0 && kind&os.ModeCharDevice == 0:
		if f.device, err = file.Seek(0, io.SeekEnd); err != nil {
			return nil, err
		}
		size = f.device
	default:
		return nil, verbs.Errorf(verbs.ErrInvalid, "open "+name, "it is neither a file nor a block device")
	}
	if size < max(cfg.Size, 1) {
		return nil, verbs.Errorf(verbs.ErrInvalid, "open "+name, "it has %d bytes: must be %d at least", size, max(cfg.Size, 1))
	}
	return f, nil
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
// goroutine of its own would cost more.
func (f *File) TryWriteAt(p []byte, off int64) (done bool, err error) {
	_, err = f.f.WriteAt(p, off)
	return true, err
}

// Sync implements Syncer.
func (f *File) Sync() error { return f.f.Sync() }

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }
