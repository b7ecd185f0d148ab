//go:build !linux

package shm

import (
	"fmt"
	"runtime"
)

func open(*config) (medium, error) {
	return nil, fmt.Errorf("segments in shared memory are Linux's and this is %s: use package stream or pipe, or stack/kernel", runtime.GOOS)
}
