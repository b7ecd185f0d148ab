package host

import (
	"context"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// do executes a command with data for the controller, or from it, or without data. in is filled if
// the command succeeds.
func (q *queue) do(ctx context.Context, cmd nvme.Command, out, in []byte) (result uint64, err error) {
	d := transfer{way: fromHost, n: len(out)}
	if len(in) > 0 {
		d = transfer{way: toHost, n: len(in)}
	}
	if d.n > chunkSize {
		return 0, verbs.Errorf(verbs.ErrInvalid, "execute command", "%d bytes of data: must be %d at most", d.n, chunkSize)
	}
	var c *chunk
	if d.n > slotData {
		if c, err = q.s.c.pool.get(ctx, true); err != nil {
			return 0, err
		}
		d.mr, d.off = c.mr, c.off
	}
	s, err := q.acquire(ctx, true)
	if err != nil {
		if c != nil {
			q.s.c.pool.put(c)
		}
		return 0, err
	}
	s.chunk, s.endless = c, cmd.Opcode == nvme.AsyncEventRequest && q.id == 0
	data := s.memory(q, d.n)
	clear(data) // the controller may send less
	copy(data, out)
	if err := q.submit(s, &cmd, &d); err != nil {
		return 0, err
	}
	result, had, err := q.finish(ctx, s, false)
	if had {
		if err == nil {
			copy(in, data)
		}
		q.put(s)
	}
	return result, err
}

// Admin executes a command of the Admin queue, with data for the controller in out, or with data
// from it into in. Both have 128 KiB at most. The command's CID and SGL are set. A status other
// than success is a *nvme.StatusError.
func (c *Controller) Admin(ctx context.Context, cmd nvme.Command, out, in []byte) (result uint64, err error) {
	const op = "execute Admin command"
	if len(out) > 0 && len(in) > 0 {
		return 0, verbs.Errorf(verbs.ErrInvalid, op, "data in both directions: %d and %d bytes", len(out), len(in))
	}
	s, err := c.current()
	if err == nil {
		result, err = s.admin.do(ctx, cmd, out, in)
	}
	if err != nil {
		return 0, &verbs.Error{Op: cmd.Opcode.Name(true), Err: err}
	}
	return result, nil
}

// Identify fills p with the data of an Identify command, of nvme.IdentifyLen bytes.
func (c *Controller) Identify(ctx context.Context, cns nvme.CNS, nsid uint32, p []byte) error {
	_, err := c.Admin(ctx, nvme.Command{Opcode: nvme.Identify, NSID: nsid, CDW10: uint32(cns)}, nil, p)
	return err
}

// identified executes an Identify command and parses its data.
func identified[T any](ctx context.Context, c *Controller, cns nvme.CNS, nsid uint32, parse func([]byte) (T, error)) (v T, err error) {
	b := make([]byte, nvme.IdentifyLen)
	if err := c.Identify(ctx, cns, nsid, b); err != nil {
		return v, err
	}
	return parse(b)
}

// maxNamespaces bounds the number of NSIDs that Namespaces reads.
const maxNamespaces = 1 << 16

// Namespaces returns the NSIDs of the active namespaces, in ascending order. More than 65536 are an
// error.
func (c *Controller) Namespaces(ctx context.Context) (all []uint32, err error) {
	for from := uint32(0); ; {
		list, err := identified(ctx, c, nvme.CNSNamespaceList, from, nvme.ParseNamespaceList)
		if err != nil {
			return nil, err
		}
		for i, last := 0, from; i < len(list); i++ {
			if list[i] <= last {
				return nil, violation("the list of namespaces after %d is not in ascending order", from)
			}
			last = list[i]
		}
		if all = append(all, list...); len(all) > maxNamespaces {
			return nil, violation("there are more than %d namespaces", maxNamespaces)
		}
		if len(list) < nvme.IdentifyLen/4 {
			return all, nil
		}
		from = list[len(list)-1]
	}
}

// LogPage fills data with a part of a log page, from an offset on. The length and the offset are
// multiples of 4. retain is nvme.LogParams.Retain.
func (c *Controller) LogPage(ctx context.Context, page nvme.LogPage, offset uint64, retain bool, data []byte) error {
	if len(data) == 0 || len(data)%4 != 0 || offset%4 != 0 {
		return verbs.Errorf(verbs.ErrInvalid, "get log page", "%d bytes at %d: must be multiples of 4, and not 0", len(data), offset)
	}
	p := nvme.LogParams{Page: page, Retain: retain, Length: uint64(len(data)), Offset: offset}
	_, err := c.Admin(ctx, p.Command(), nil, data)
	return err
}

// SMART returns the log page SMART / Health Information.
func (c *Controller) SMART(ctx context.Context) (s nvme.SMART, err error) {
	b := make([]byte, nvme.SMARTLen)
	if err := c.LogPage(ctx, nvme.LogSMART, 0, false, b); err != nil {
		return s, err
	}
	return nvme.ParseSMART(b)
}

// ErrorLog returns the log of errors, the latest first.
func (c *Controller) ErrorLog(ctx context.Context) (log []nvme.ErrorEntry, err error) {
	b := make([]byte, (int(c.Identity().ErrorEntries)+1)*nvme.ErrorEntryLen)
	if err := c.LogPage(ctx, nvme.LogErrors, 0, false, b); err != nil {
		return nil, err
	}
	for ; len(b) > 0; b = b[nvme.ErrorEntryLen:] {
		e, err := nvme.ParseErrorEntry(b)
		if err != nil {
			return nil, err
		}
		if e.Count > 0 {
			log = append(log, e)
		}
	}
	return log, nil
}

// ChangedNamespaces returns the NSIDs of the namespaces that have changed since the last call.
func (c *Controller) ChangedNamespaces(ctx context.Context) ([]uint32, error) {
	b := make([]byte, nvme.IdentifyLen)
	if err := c.LogPage(ctx, nvme.LogChangedNamespaces, 0, false, b); err != nil {
		return nil, err
	}
	return nvme.ParseNamespaceList(b)
}

// GetFeature returns the value of a feature without data.
func (c *Controller) GetFeature(ctx context.Context, f nvme.Feature) (uint32, error) {
	result, err := c.Admin(ctx, nvme.Command{Opcode: nvme.GetFeatures, CDW10: uint32(f)}, nil, nil)
	return uint32(result), err
}

// SetFeature sets the value of a feature without data, and returns the result.
func (c *Controller) SetFeature(ctx context.Context, f nvme.Feature, value uint32) (uint32, error) {
	result, err := c.Admin(ctx, nvme.Command{Opcode: nvme.SetFeatures, CDW10: uint32(f), CDW11: value}, nil, nil)
	return uint32(result), err
}
