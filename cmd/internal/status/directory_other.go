//go:build !unix

package status

import "errors"

func makeDirectory(string) error { return errors.ErrUnsupported }
