// SPDX-License-Identifier: GPL-2.0-only
/*
 * A sound card plays what the program has: PCM by the kernel's own calls, as its drivers of gadgets
 * make them.
 *
 * A thread writes, and sleeps while the card's buffer is full; the driver's interrupts, one for
 * each period, wake it. When the card runs dry, that is counted, and it goes on.
 */
#include <linux/init.h>
#include <linux/pci.h>
#include <sound/core.h>
#include <sound/pcm.h>
#include <sound/pcm_params.h>

#include "dde.h"
#include "dde_net.h"
#include "dde_sound.h"

/* Interrupts in the time that the card's buffer lasts. */
#define PERIODS 4u

static bool stopping;
static struct pci_dev *device;

/* Nothing waits for the driver but the thread that plays, which it wakes. */
void dde_glue_idle(void)
{
}

void dde_net_stop(void)
{
	stopping = true;
}

static void __noreturn __printf(1, 2) failed(const char *format, ...)
{
	static char text[200];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	dde_net_failed(text);
}

/* The first that the card plays by. */
static struct snd_pcm *find(struct snd_card **card)
{
	struct snd_device *dev;

	wait_for_device_probe();
	for_each_pci_dev(device) {
		if (!device->dev.driver)
			dde_net_failed(dde_pci_misfit());
		break;
	}
	*card = snd_card_ref(0);
	if (*card)
		list_for_each_entry(dev, &(*card)->devices, list) {
			struct snd_pcm *pcm = dev->device_data;

			if (dev->type == SNDRV_DEV_PCM &&
			    pcm->streams[SNDRV_PCM_STREAM_PLAYBACK].substream)
				return pcm;
		}
	failed("the driver has found nothing there that plays");
}

/* What the card has of `params`, all of which may have changed. */
static int refine(struct snd_pcm_substream *stream, struct snd_pcm_hw_params *params)
{
	params->rmask = ~0u;
	return snd_pcm_hw_refine(stream, params);
}

/*
 * The nearest that the card has to what it does not have, on the side of `from` or of `to`; 0 if
 * there is none.
 */
static unsigned int nearest(struct snd_pcm_substream *stream,
			    const struct snd_pcm_hw_params *params, int what, unsigned int from,
			    unsigned int to)
{
	struct snd_pcm_hw_params narrowed = *params;
	struct snd_interval *interval = hw_param_interval(&narrowed, what);

	interval->min = max(interval->min, from);
	interval->max = min(interval->max, to);
	if (interval->min > interval->max || refine(stream, &narrowed) < 0)
		return 0;
	return to == UINT_MAX ? interval->min : interval->max;
}

/* Exactly `wanted` of it. */
static void set(struct snd_pcm_substream *stream, struct snd_pcm_hw_params *params, int what,
		unsigned int wanted, const char *unit)
{
	struct snd_pcm_hw_params before = *params;
	struct snd_interval *interval = hw_param_interval(params, what);

	interval->min = max(interval->min, wanted);
	interval->max = min(interval->max, wanted);
	interval->openmin = interval->openmax = 0;
	if (interval->min <= interval->max && refine(stream, params) == 0)
		return;
	failed("the card does not play %u %s; it has %u and %u beside that (0: none). Next: "
	       "convert the file, with sox for example", wanted, unit,
	       nearest(stream, &before, what, 0, wanted),
	       nearest(stream, &before, what, wanted, UINT_MAX));
}

static void choose(struct snd_pcm_hw_params *params, int what, unsigned int bit)
{
	snd_mask_none(hw_param_mask(params, what));
	snd_mask_set(hw_param_mask(params, what), bit);
}

/* As the file is; of the card's buffer all, and some interrupts in it. */
static void configure(struct snd_pcm_substream *stream, const struct dde_wave *wave)
{
	struct snd_pcm_hw_params *params = kzalloc(sizeof(*params), GFP_KERNEL);
	struct snd_pcm_sw_params *software = kzalloc(sizeof(*software), GFP_KERNEL);
	snd_pcm_format_t format = wave->bits == 8 ? SNDRV_PCM_FORMAT_U8 : SNDRV_PCM_FORMAT_S16_LE;
	struct snd_pcm_runtime *runtime = stream->runtime;
	struct snd_interval *periods;
	int result;

	if (!params || !software)
		failed("no memory: give the process a larger --arena");
	_snd_pcm_hw_params_any(params);
	choose(params, SNDRV_PCM_HW_PARAM_ACCESS,
	       (__force unsigned int)SNDRV_PCM_ACCESS_RW_INTERLEAVED);
	choose(params, SNDRV_PCM_HW_PARAM_FORMAT, (__force unsigned int)format);
	if (refine(stream, params) < 0)
		failed("the card does not play %u bits", wave->bits);
	set(stream, params, SNDRV_PCM_HW_PARAM_CHANNELS, wave->channels, "channels");
	set(stream, params, SNDRV_PCM_HW_PARAM_RATE, wave->rate, "samples a second");
	snd_pcm_hw_param_last(stream, params, SNDRV_PCM_HW_PARAM_BUFFER_SIZE, NULL);
	periods = hw_param_interval(params, SNDRV_PCM_HW_PARAM_PERIODS);
	periods->max = max(periods->min, min(periods->max, PERIODS));
	result = snd_pcm_kernel_ioctl(stream, SNDRV_PCM_IOCTL_HW_PARAMS, params);
	if (result < 0)
		failed("the card does not play this: errno %d", -result);
	software->proto = SNDRV_PCM_VERSION;
	software->tstamp_mode = SNDRV_PCM_TSTAMP_NONE;
	software->period_step = 1;
	software->avail_min = runtime->period_size;
	software->start_threshold = runtime->buffer_size;
	software->stop_threshold = runtime->buffer_size;
	/* Behind the last sample the card finds silence, and not what was played before. */
	software->silence_threshold = software->silence_size = runtime->buffer_size;
	result = snd_pcm_kernel_ioctl(stream, SNDRV_PCM_IOCTL_SW_PARAMS, software);
	if (result == 0)
		result = snd_pcm_kernel_ioctl(stream, SNDRV_PCM_IOCTL_PREPARE, NULL);
	if (result < 0)
		failed("the card is not ready to play: errno %d", -result);
	kfree(params);
	kfree(software);
}

/*
 * Whether all that the card had at `since`, at most its buffer, was played before now. The kernel,
 * which knows where in its buffer the card is, does not tell one round from two.
 */
static bool ran_dry(const struct snd_pcm_runtime *runtime, u64 since)
{
	return since &&
	       div_u64((ddekit_now() - since) * runtime->rate, NSEC_PER_SEC) > runtime->buffer_size;
}

/* Whether the card has played anything since it was prepared. */
static bool moves(struct snd_pcm_substream *stream)
{
	snd_pcm_sframes_t delay;

	snd_pcm_kernel_ioctl(stream, SNDRV_PCM_IOCTL_DELAY, &delay);
	return stream->runtime->status->hw_ptr > 0;
}

/* Writes `frames`; how often the card has run dry meanwhile. */
static unsigned int write(struct snd_pcm_substream *stream, const u8 *bytes, u64 frames)
{
	struct snd_pcm_runtime *runtime = stream->runtime;
	unsigned int width = frames_to_bytes(runtime, 1), underruns = 0;
	u64 since = 0;

	while (frames > 0 && !stopping) {
		snd_pcm_sframes_t written =
			snd_pcm_kernel_write(stream, bytes,
					     min_t(u64, frames, runtime->period_size));

		/*
		 * A wait that has ended without an interrupt is one of a process that has not run,
		 * if the card is alive.
		 */
		if (written == -EPIPE || (written == -EIO && moves(stream)) ||
		    (written > 0 && ran_dry(runtime, since))) {
			/* From here on, and what was written last once more. */
			snd_pcm_kernel_ioctl(stream, SNDRV_PCM_IOCTL_DROP, NULL);
			snd_pcm_kernel_ioctl(stream, SNDRV_PCM_IOCTL_PREPARE, NULL);
			underruns++;
			since = 0;
			continue;
		}
		if (written <= 0)
			failed("the card takes no samples any more: errno %ld", -written);
		since = runtime->state == SNDRV_PCM_STATE_RUNNING ? ddekit_now() : 0;
		bytes += written * width;
		frames -= written;
	}
	return underruns;
}

/*
 * It is at the end when it has played whole periods. One more is silence, as a card may still have
 * samples of its own when it is told to stop.
 */
static unsigned int finish(struct snd_pcm_substream *stream, u64 frames)
{
	struct snd_pcm_runtime *runtime = stream->runtime;
	unsigned int rest = runtime->period_size - do_div(frames, runtime->period_size) +
			    runtime->period_size, underruns;
	u8 *silence = kmalloc(frames_to_bytes(runtime, rest), GFP_KERNEL);

	if (!silence)
		failed("no memory: give the process a larger --arena");
	snd_pcm_format_set_silence(runtime->format, silence, rest * runtime->channels);
	underruns = write(stream, silence, rest);
	kfree(silence);
	return underruns;
}

/* In the thread that has called the drivers' initialisation. */
void dde_run(void)
{
	const struct dde_wave *wave = dde_sound_wave();
	struct snd_pcm_substream *stream;
	struct snd_card *card;
	struct snd_pcm *pcm;
	unsigned int underruns;
	/* Who opens it asks for no more than its flags. */
	struct file *file = kzalloc(sizeof(*file), GFP_KERNEL);
	int result;

	pcm = find(&card);
	if (!wave)
		failed("a sound card is not served to others: --play FILE.wav has it play a file");
	result = file ? snd_pcm_open_substream(pcm, SNDRV_PCM_STREAM_PLAYBACK, file,
					       &stream) : -ENOMEM;
	if (result < 0)
		failed("the card cannot be opened to play: errno %d", -result);
	configure(stream, wave);
	dde_sound_begins(dev_driver_string(&device->dev), card->longname);
	underruns = write(stream, wave->samples, wave->frames);
	underruns += finish(stream, wave->frames);
	snd_pcm_kernel_ioctl(stream, stopping ? SNDRV_PCM_IOCTL_DROP : SNDRV_PCM_IOCTL_DRAIN, NULL);
	if (!stopping)
		dde_sound_played(wave->frames, underruns);
	snd_pcm_release_substream(stream);
	snd_card_unref(card);
	/* So that it leaves the device as it was found. */
	device_release_driver(&device->dev);
	dde_net_closed();
}
