//go:build !unix

package verbs

import "os"

// RegFile is not supported on this system.
func (pd *PD) RegFile(f *os.File, offset int64, length int, access Access) (*MR, error) {
	return nil, Errorf(ErrNotSupported, "register file", "this system has no mmap")
}

func syncMapping(b []byte) error { return ErrNotSupported }
