package nvme

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
)

// copySize is the number of bytes that are copied at a time, in several commands.
const copySize = 4 << 20

// offset is a place in a namespace as the value of a flag: a size, or 0.
type offset int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *offset) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		*o = 0
		return nil
	}
	return (*size)(o).UnmarshalText(text)
}

// part has the flags for a part of a namespace.
type part struct {
	Offset offset `default:"0" placeholder:"SIZE" help:"Where in the namespace to begin, a multiple of its block size: like 4096, 512M or 10G. Default: 0."`
	Size   size   `placeholder:"SIZE" help:"How much to copy at most. Default: all."`
}

// read copies a namespace to a file.
type read struct {
	volume
	File string `arg:"" optional:"" help:"The file, which is created or overwritten. Default: stdout."`
	part
}

// Help implements kong.HelpProvider.
func (*read) Help() string { return `In the end FILE is on its disk.` }

// Run copies the namespace.
func (r *read) Run(ctx context.Context, e *cli.Env) error {
	cfg := r.config()
	cfg.IOQueues = 1
	return r.open(ctx, e, cfg, func(ctx context.Context, c *host.Controller, ns *host.Namespace) error {
		to := func(w io.Writer) error { return r.copy(ctx, e, c, ns, w) }
		if r.File == "" {
			return to(e.Stdout)
		}
		_, missing := os.Stat(r.File)
		f, err := os.Create(r.File)
		if err == nil {
			err = store(f, to)
		}
		if err != nil || !errors.Is(missing, fs.ErrNotExist) || runtime.GOOS == "windows" { // which keeps names without this
			return err
		}
		dir, err := os.Open(filepath.Dir(r.File))
		if err != nil {
			return err
		}
		return store(dir, func(io.Writer) error { return nil })
	})
}

// store writes a file by fill, makes it durable and closes it.
func store(f interface {
	io.WriteCloser
	Sync() error
}, fill func(io.Writer) error) error {
	if err := fill(f); err != nil {
		return errors.Join(err, f.Close())
	}
	err := f.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) { // a pipe or a terminal
		err = nil
	}
	return errors.Join(err, f.Close())
}

// copy copies the part of the namespace to w.
func (r *read) copy(ctx context.Context, e *cli.Env, c *host.Controller, ns *host.Namespace, w io.Writer) (err error) {
	n := max(ns.Size()-int64(r.Offset), 0)
	if r.part.Size > 0 {
		n = min(n, int64(r.part.Size))
	}
	m, err := c.Register(make([]byte, copySize))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	bar := output.NewCopy(e.Stderr, n)
	defer func() { _ = bar.Exit() }()
	block := int64(ns.BlockSize())
	for at := int64(0); at < n; {
		k := min(n-at, copySize)
		if _, err := ns.ReadMemory(ctx, m, 0, int((k+block-1)/block*block), int64(r.Offset)+at); err != nil {
			return err
		}
		if _, err := w.Write(m.Bytes()[:k]); err != nil {
			return err
		}
		_ = bar.Add64(k)
		at += k
	}
	return nil
}

// write copies a file to a namespace.
type write struct {
	volume
	File string `arg:"" optional:"" help:"The file. Default: stdin."`
	part
}

// Help implements kong.HelpProvider.
func (*write) Help() string {
	return `The namespace is overwritten. If the file ends within a block, the rest of the block is kept. In the end all is flushed.`
}

// Run copies the file.
func (r *write) Run(ctx context.Context, e *cli.Env) error {
	cfg := r.config()
	cfg.IOQueues = 1
	return r.open(ctx, e, cfg, func(ctx context.Context, c *host.Controller, ns *host.Namespace) (err error) {
		in, n := e.Stdin, int64(-1)
		if r.File != "" {
			f, err := os.Open(r.File)
			if err != nil {
				return err
			}
			defer f.Close()
			if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
				n = info.Size()
			}
			in = f
		}
		if in == nil {
			return nil
		}
		if r.part.Size > 0 {
			in = io.LimitReader(in, int64(r.part.Size))
			if n >= 0 {
				n = min(n, int64(r.part.Size))
			}
		}
		if room := ns.Size() - int64(r.Offset); n > room {
			return fmt.Errorf("%s has %d bytes: the namespace has %d from --offset on", r.File, n, max(room, 0))
		}
		m, err := c.Register(make([]byte, copySize))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		bar := output.NewCopy(e.Stderr, n)
		defer func() { _ = bar.Exit() }()
		block := ns.BlockSize()
		for at := int64(r.Offset); ; {
			k, err := io.ReadFull(in, m.Bytes())
			end := err == io.EOF || err == io.ErrUnexpectedEOF
			if err != nil && !end {
				return err
			}
			if rest := k % block; rest > 0 { // the end of the block is kept
				last := make([]byte, block)
				if _, err := ns.Read(ctx, last, at+int64(k-rest)); err != nil {
					return err
				}
				k += copy(m.Bytes()[k:], last[rest:])
			}
			if _, err := ns.WriteMemory(ctx, m, 0, k, at); err != nil {
				return err
			}
			_ = bar.Add64(int64(k))
			at += int64(k)
			if end {
				return ns.Flush(ctx)
			}
		}
	})
}
