//go:build !linux

package shm

import (
	"fmt"
	"runtime"
)

func open(*config) (medium, error) {
	return nil, fmt.Errorf("shared-memory segments need Linux and this is %s: use package stream or pipe, or stack/kernel", runtime.GOOS)
}
