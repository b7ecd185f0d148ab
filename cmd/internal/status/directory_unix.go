//go:build unix

package status

import "github.com/softrnic/softrnic/link/userdir"

func makeDirectory(dir string) error { return userdir.Make(dir) }
