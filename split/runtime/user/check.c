// SPDX-License-Identifier: Apache-2.0 OR MIT
/* What AddressSanitizer is told. */
#ifdef __SANITIZE_ADDRESS__

/*
 * Leaks are not looked for: what ends with the process is not lost. The first error ends it, as a
 * fault does.
 */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "detect_leaks=0:exitcode=99:handle_segv=1:allow_user_segv_handler=0:"
	       "detect_stack_use_after_return=0";
}

#else
typedef int split_nothing_is_checked;
#endif
