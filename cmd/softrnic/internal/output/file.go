// Package output is how commands write: files of results, progress bars and sizes.
package output

import (
	"errors"
	"io/fs"
	"os"
)

// File is a file that is opened before the work whose result it is to have, and written after: who may not write it
// learns so at once. What it had before stays until then.
type File struct {
	*os.File
	made bool // it was not there
}

func Open(name string) (*File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(name, os.O_WRONLY, 0)
		return &File{f, false}, err
	}
	return &File{f, true}, err
}

// Replace makes b all that the file has, and closes it.
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

// Discard closes the file, which is then as it was before, or not there.
func (o *File) Discard() error {
	err := o.Close()
	if o.made {
		err = errors.Join(err, os.Remove(o.Name()))
	}
	return err
}
