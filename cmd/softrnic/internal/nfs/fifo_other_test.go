//go:build !unix

package nfs

import "errors"

func mkfifo(string) error { return errors.ErrUnsupported }
