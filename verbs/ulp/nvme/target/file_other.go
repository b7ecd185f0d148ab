//go:build !linux

package target

import "errors"

const exclusive = 0

// TryReadAt implements TryReader.
func (f *File) TryReadAt([]byte, int64) (done bool, err error) { return false, nil }

// Discard implements Discarder.
func (f *File) Discard(int64, int64) error { return errors.ErrUnsupported }

// Zero implements Zeroer.
func (f *File) Zero(int64, int64) error { return errors.ErrUnsupported }
