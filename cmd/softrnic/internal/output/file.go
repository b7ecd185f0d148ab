// Package output writes files of results, progress bars and sizes for commands.
package output

import (
	"errors"
	"io/fs"
	"os"
)

// File is a file for a result. It is opened before the work begins, so that a missing permission is
// reported at once. It is written when the result is known, and keeps its old content until then.
type File struct {
	*os.File
	made bool // created by Open
}

func Open(name string) (*File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(name, os.O_WRONLY, 0)
		return &File{f, false}, err
	}
	return &File{f, true}, err
}

// Replace replaces the content of the file by b, and closes it.
func (o *File) Replace(b []byte) error {
	info, err := o.Stat()
	if err == nil && info.Mode().IsRegular() {
		err = o.Truncate(0)
	}
	if err == nil {
		_, err = o.Write(b)
	}
	return errors.Join(err, o.Close())
}

// Discard closes the file unchanged. If Open has created the file, it is removed.
func (o *File) Discard() error {
	err := o.Close()
	if o.made {
		err = errors.Join(err, os.Remove(o.Name()))
	}
	return err
}
