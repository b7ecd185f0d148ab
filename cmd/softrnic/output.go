package main

import (
	"errors"
	"io/fs"
	"os"
)

// outputFile is a file that is opened before the work whose result it is to have, and written after: who may not write it
// learns so at once. What it had before stays until then.
type outputFile struct {
	*os.File
	made bool // it was not there
}

func openOutput(name string) (*outputFile, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(name, os.O_WRONLY, 0)
		return &outputFile{f, false}, err
	}
	return &outputFile{f, true}, err
}

// replace makes b all that the file has, and closes it.
func (o *outputFile) replace(b []byte) error {
	info, err := o.Stat()
	if err == nil && info.Mode().IsRegular() {
		err = o.Truncate(0)
	}
	if err == nil {
		_, err = o.Write(b)
	}
	return errors.Join(err, o.Close())
}

// discard closes the file, which is then as it was before, or not there.
func (o *outputFile) discard() error {
	err := o.Close()
	if o.made {
		err = errors.Join(err, os.Remove(o.Name()))
	}
	return err
}
