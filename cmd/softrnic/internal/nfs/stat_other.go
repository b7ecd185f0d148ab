//go:build !linux

package nfs

import (
	"errors"
	"io/fs"

	"github.com/willscott/go-nfs/file"
)

const openFileFlag = 0

// Identity returns the file's number.
func (d *directory) Identity(_ string, info fs.FileInfo) identity {
	sys, ok := info.Sys().(*file.FileInfo)
	if !ok {
		return identity{}
	}
	return identity{number: sys.Fileid}
}

// Space is not known.
func (d *directory) Space() (space, error) { return space{}, errors.ErrUnsupported }

func deviceOf(int) uint64 { return 0 }
