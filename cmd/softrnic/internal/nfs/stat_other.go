//go:build !linux && !darwin && !freebsd

package nfs

import "io/fs"

// setSys has nothing to set.
func setSys(*attributes, fs.FileInfo) {}
