//go:build !linux

package nfs

import (
	"errors"
	"io/fs"
	"os"
	"runtime"

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

// Windows cannot sync a directory: NTFS has a journal for it.
const syncsDirectories = runtime.GOOS != "windows"

// syncFileSystem does nothing: only Linux has a call that reports errors.
func syncFileSystem(*os.File) error { return nil }
